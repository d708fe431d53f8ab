"""What a pass costs the daemon on a very large cluster: `python -m benchmarks.large_site --json`.

By default 50,000 waiting and 20,000 running jobs on 10,000 nodes of 8 GPUs. CPU seconds of one process, medians:

* `<policy>.plan_s`: plan and check as in any pass, a third of the jobs with a learning curve that has been seen before;
  `first_s`: the same after a restart, every curve to be fitted; `exponent`: log10 of the ratio to a tenth of the jobs
  on a tenth of the nodes; `by_user.<policy>`: the same with 200 users who are scopes of their own, the default;
* `read_first_s`, `read_s`: from the text of squeue, sprio and scontrol to records, the first time and when a hundredth
  of the jobs has changed; `observe_s`: from records to the policy's snapshot; `changes_s`: from a plan to what has to
  change in Slurm;
* `memory_mib`: the most that reading, plan and changes together hold, without the learning curves.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from msgspec.structs import replace

from benchmarks import policy_pass
from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.snapshot import Snapshot
from slurm_plugin.client import parse, squeue
from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.config import Config
from slurm_plugin.observation.observe import observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.decide import Kept, changes
from slurm_plugin.steering.preemption import PreemptionTracker
from slurm_plugin.steering.reconcile import SteeringLimits

NOW_S = 1_700_000_000.0
USERS = 200
_FIELD, _RECORD = "\x1f0f", "\x1f0r"
_NOTHING = dict.fromkeys(squeue.JOB_FIELDS, "N/A")


def squeue_record(job_id: int, node: str, priority: int) -> str:
    """One job as squeue prints it; a waiting one without a node."""
    submitted = str(int(NOW_S) - 100_000 + job_id)
    fields = _NOTHING | {
        "JobID": str(job_id),
        "ArrayJobID": str(job_id),
        "UserID": str(1000 + job_id % USERS),
        "UserName": f"user{job_id % USERS}",
        "Account": f"account{job_id % 20}",
        "Partition": "main",
        "QOS": "normal",
        "State": "RUNNING" if node else "PENDING",
        "Reason": "None" if node else "Priority",
        "PriorityLong": str(priority),
        "SubmitTime": submitted,
        "EligibleTime": submitted,
        "StartTime": str(int(NOW_S) - 3600) if node else "N/A",
        "TimeLimit": "1-00:00:00",
        "NumNodes": "1",
        "NumTasks": "1",
        "NumCPUs": "8",
        "NodeList": node,
        "tres-alloc": "cpu=8,mem=64000M,node=1,billing=8,gres/gpu=4",
        "tres-per-node": "gres:gpu:4",
        "RestartCnt": "0",
        "Nice": "0",
        "OverSubscribe": "OK",
        "Name": f"train-{job_id}",
        "Comment": f"explsched:sweep=s{job_id % 50}" if job_id % 3 == 0 else "",
    }
    return _FIELD.join(fields[name] for name in squeue.JOB_FIELDS) + _RECORD


def node_line(number: int) -> str:
    """One node as `scontrol show node --oneliner` prints it."""
    return (
        f"NodeName=n{number:05d} Arch=x86_64 CoresPerSocket=16 CPUAlloc=16 CPUEfctv=64 CPUTot=64 CPULoad=3.20 "
        f"AvailableFeatures=a100 ActiveFeatures=a100 Gres=gpu:8(S:0-1) NodeAddr=n{number:05d} "
        f"NodeHostName=n{number:05d} Version=24.11.5 OS=Linux 6.1.0 RealMemory=512000 AllocMem=128000 FreeMem=300000 "
        "Sockets=4 Boards=1 State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main "
        "BootTime=1 SlurmdStartTime=2 CfgTRES=cpu=64,mem=500G,gres/gpu=8 AllocTRES=cpu=16,gres/gpu=8"
    )


class Site:
    """What Slurm's commands print on a cluster of this size; two running jobs on each node."""

    def __init__(self, nodes: int, pending: int, running: int) -> None:
        self._running = [squeue_record(i, f"n{(i - 1) % nodes:05d}", 1) for i in range(1, running + 1)]
        self._ids = range(running + 1, running + 1 + pending)
        self._pending = [squeue_record(i, "", 100_000 + i % 5000) for i in self._ids]
        self.sprio = "".join(f"{i}|{100_000 + i % 5000}|0|1|2|3|4|5|6|cpu=1|0\n" for i in self._ids)
        self.nodes = [node_line(i) for i in range(nodes)]

    @property
    def squeue(self) -> str:
        """All its jobs."""
        return "\n".join((*self._running, *self._pending))

    def touch(self, every: int) -> None:
        """Give each so many waiting jobs another priority."""
        for i in range(0, len(self._pending), every):
            self._pending[i] = squeue_record(self._ids[i], "", 200_000 + i % 5000)


def read(site: Site, listing: str, reader: squeue.JobReader) -> ClusterRecords:
    """Records of what the commands have printed."""
    nodes = tuple(parse.node(line) for line in site.nodes)
    priorities = parse.priorities(site.sprio)
    reader.begin(_FIELD)
    jobs = (reader.job(record) for record in squeue.records(listing, _RECORD))
    return ClusterRecords(nodes, tuple(_completed(job, priorities) for job in jobs), ())


def _completed(job: SlurmJob, priorities: dict[int, parse.Priority]) -> SlurmJob:
    found = priorities.get(job.job_id)
    return job if found is None else replace(job, site_factor=found.site_factor, natives=found.natives)


def cpu_s(act: Callable[[], object]) -> float:
    """CPU time that something takes."""
    gc.collect()
    began_s = time.process_time()
    act()
    return time.process_time() - began_s


def steady_plan_s(name: str, seen: Snapshot, repeats: int) -> tuple[float, float]:
    """(a first plan, the median of later ones), each with check."""
    policy = catalog.build(name)
    fresh = policy_pass.as_new(seen)
    first_s = cpu_s(lambda: checked_plan(policy, fresh))
    times_s = []
    for number in range(1, repeats + 1):
        jobs = [replace(job) for job in fresh.jobs]
        later = Snapshot.of(fresh.now_s + 15.0 * number, fresh.nodes, jobs)
        times_s.append(cpu_s(lambda later=later: checked_plan(policy, later)))  # type: ignore[misc]
    return first_s, statistics.median(times_s)


def plan_figures(name: str, large: Snapshot, small: Snapshot, repeats: int) -> dict[str, float]:
    """What a plan costs."""
    first_s, plan_s = steady_plan_s(name, large, repeats)
    exponent = math.log10(plan_s / steady_plan_s(name, small, repeats)[1])
    return {"plan_s": round(plan_s, 3), "first_s": round(first_s, 3), "exponent": round(exponent, 2)}


def by_user(seen: Snapshot) -> Snapshot:
    """The same jobs as those of many users, each with a fair share of his own and sweeps of his own."""
    jobs = []
    for job in seen.jobs:
        number = job.job_id % USERS
        whose = {"user": f"user{number}", "scope": f"user{number}", "fair_share": (number + 1) / USERS, "lane": "main"}
        jobs.append(replace(job, peers="main", native_priority=float(job.job_id % 5000), **whose))
    return Snapshot.of(seen.now_s, seen.nodes, jobs)


def pass_figures(nodes: int, pending: int, running: int, repeats: int) -> dict[str, float]:
    """What reading, the snapshot and the changes cost, and the memory of this process after them."""
    site, reader = Site(nodes, pending, running), squeue.JobReader()
    listing = site.squeue
    figures = {"read_first_s": cpu_s(lambda: read(site, listing, reader))}
    read_s, observe_s, changes_s = [], [], []
    policy, limits = catalog.build("srsf"), SteeringLimits.of(Config())
    with tempfile.TemporaryDirectory() as spool:
        for _ in range(repeats):
            site.touch(100)
            listing = site.squeue
            began_s = time.process_time()
            found = read(site, listing, reader)
            read_s.append(time.process_time() - began_s)
            began_s = time.process_time()
            seen = observe(found, ProgressSpool(Path(spool)), NOW_S)
            observe_s.append(time.process_time() - began_s)
            plan = checked_plan(policy, seen.snapshot)
            began_s = time.process_time()
            changes(plan, seen, limits, Kept(PreemptionTracker(Config().preemption), {}))
            changes_s.append(time.process_time() - began_s)
    figures |= {
        "read_s": statistics.median(read_s),
        "observe_s": statistics.median(observe_s),
        "changes_s": statistics.median(changes_s),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    return {name: round(value, 3) for name, value in figures.items()}


@click.command()
@click.option("--policies", default="srsf,explsched", show_default=True, help="Names, separated by commas.")
@click.option("--nodes", default=10_000, show_default=True, type=click.IntRange(10), help="Nodes of 8 GPUs.")
@click.option("--pending", default=50_000, show_default=True, type=click.IntRange(100), help="Waiting jobs.")
@click.option("--running", default=20_000, show_default=True, type=click.IntRange(0), help="Running jobs.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Measurements per median.")
@click.option("--part", type=click.Choice(["all", "pass"]), default="all", show_default=True, help="pass: no plans.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(policies: str, nodes: int, pending: int, running: int, repeats: int, part: str, as_json: bool) -> None:  # noqa: FBT001
    """Time the parts of a pass."""
    figures: dict[str, object] = {}
    if part == "pass":
        figures |= pass_figures(nodes, pending, running, repeats)
    else:
        argv = [sys.executable, "-m", "benchmarks.large_site", "--part", "pass", "--json"]
        argv += [f"--nodes={nodes}", f"--pending={pending}", f"--running={running}", f"--repeats={repeats}"]
        # In a process of its own, whose memory is only that of a pass.
        figures |= json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        large = policy_pass.snapshot(pending, running, nodes=nodes)
        small = policy_pass.snapshot(pending // 10, running // 10, nodes=nodes // 10)
        names = policies.split(",")
        figures |= {name: plan_figures(name, large, small, repeats) for name in names}
        large, small = by_user(large), by_user(small)
        figures["by_user"] = {name: plan_figures(name, large, small, repeats) for name in names}
    print(json.dumps(figures) if as_json else "\n".join(f"{name:<14} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
