"""Whether the audit file is complete: `python -m benchmarks.audit_replay --minutes 60 --json`.

A private cluster of two nodes runs trainings that report, are preempted and requeued, and gangs that get leases, under
the real daemon, which is restarted once. Meanwhile an admin writes into jobs and cancels some. At the end every line
that slurmctld logged of a change is compared with what the audit file, and the admin's own list, say of it:

* `slurm`: changes by field in slurmctld's log; `audit`: in the audit file, without those that Slurm refused;
* `missing`: in the log, and in no list; `extra`: in a list, and not in the log. Both must be empty.

Site factors and comments are compared by value, leases by nodes and times; signals, cancellations and requeues by their
number, as slurmctld logs no signal's name.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click

from slurm_plugin import devcluster
from slurm_plugin.audit_file import AuditEntry, read
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster.machine import until

_WAITING = 12
_POLL_S = 2.0
_ADMIN_EVERY_S = 15.0
_NICE_OFFSET = 0x80000000
_SETTINGS = {
    "policy": "explsched",
    "interval_s": 5.0,
    "slurm": {"client": "cli"},
    "order": {"scope": "partition"},
    "utility": {"quantum_s": 8.0},
    "preemption": {"grace_s": 10.0, "max_per_job_per_hour": 12, "max_per_hour": 10_000},
}
_SPEC = devcluster.ClusterSpec(
    2,
    4,
    shards_per_node=0,
    cpus_per_node=32,
    extra=(("SchedulerParameters", "bf_interval=5,bf_resolution=10,bf_continue"), ("MinJobAge", "300")),
)


class Written(NamedTuple):
    """One change: the job it is of, the field, and the value that can be compared (empty where only the number can)."""

    job_id: int
    field: str
    value: str


_LOGGED: tuple[tuple[str, str], ...] = (
    ("SiteFactor", r"_update_job: setting AdinPrioFactor to (?P<value>\d+) for JobId=(?P<job>\d+)"),
    ("AdminComment", r"_update_job: setting admin_comment to (?P<value>.*) for JobId=(?P<job>\d+)"),
    ("Reservation", r"_update_job: setting reservation to (?P<value>\S+) for JobId=(?P<job>\d+)"),
    ("ReqNodeList", r"_update_job: setting req_nodes to (?P<value>\S*) for JobId=(?P<job>\d+)"),
    ("StartTime", r"_update_job: setting begin to \S+ for JobId=(?P<job>\d+)"),
    ("Requeue", r"Requeuing JobId=(?P<job>\d+)"),
    ("Kill", r"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=(?P<job>\d+) uid"),
    (
        "Lease",
        r"Created reservation=explsched_(?P<job>\d+) .*nodes=(?P<value>\S+) .*start=(?P<from>\S+) end=(?P<to>\S+)",
    ),
    ("LeaseEnd", r"Updated reservation=explsched_(?P<job>\d+) .* end=(?P<to>\S+)"),
    ("LeaseOver", r"_slurm_rpc_delete_reservation complete for explsched_(?P<job>\d+) "),
)


def logged(lines: Iterable[str]) -> Iterator[Written]:
    """What slurmctld logged of changes."""
    patterns = [(field, re.compile(pattern)) for field, pattern in _LOGGED]
    for line in lines:
        for field, pattern in patterns:
            if match := pattern.search(line):
                yield Written(int(match["job"]), field, _logged_value(field, match.groupdict()))
                break


def _logged_value(field: str, found: Mapping[str, str]) -> str:
    match field:
        case "SiteFactor":
            return str(int(found["value"]) - _NICE_OFFSET)
        case "Lease":
            from_s, to_s = _seconds(found["from"]), _seconds(found["to"])
            return f"{_nodes(found['value'])} from {from_s} for {(to_s - from_s) // 60} min"
        case "LeaseEnd":
            return str(_seconds(found["to"]))
        case _:
            return found.get("value", "").strip("'")


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone().timestamp())


def _nodes(text: str) -> str:
    """The two nodes as the audit names them."""
    return {"n[1-2]": "n1,n2"}.get(text, text)


def audited(entries: Iterable[AuditEntry]) -> Iterator[Written]:
    """What the audit file says was written, in the log's terms."""
    for entry in entries:
        job_id, value = entry.job or 0, str(entry.after)
        if entry.field == "Signal" or (entry.field, value) == ("JobState", "CANCELLED"):
            yield Written(job_id, "Kill", "")
        elif entry.field == "Lease" and not value:
            yield Written(job_id, "LeaseOver", "")
        elif entry.field == "LeaseEnd":
            yield Written(job_id, "LeaseEnd", str(int(float(value))))
        elif entry.field == "JobState":
            yield Written(job_id, "Requeue", "")
        elif entry.field == "StartTime":
            yield Written(job_id, "StartTime", "")
        else:
            yield Written(job_id, entry.field, value)


class Admin:
    """Somebody who writes into jobs by hand, and keeps a list of it."""

    def __init__(self, environment: Mapping[str, str], seed: int) -> None:
        self._environment = environment
        self._chance = random.Random(seed)  # noqa: S311  a workload, no secret
        self._number = 0
        self.list: list[Written] = []

    def act(self, running: list[int], waiting: list[int]) -> None:
        """Comment on one job; now and then cancel one that waits."""
        self._number += 1
        if running:
            job_id = self._chance.choice(running)
            note = f"JS1:{self._number}"
            if self._run("scontrol", "update", f"JobId={job_id}", f"AdminComment={note}"):
                self.list.append(Written(job_id, "AdminComment", note))
        if waiting and self._number % 4 == 0:
            job_id = self._chance.choice(waiting)
            if self._run("scancel", str(job_id)):
                self.list.append(Written(job_id, "Kill", ""))

    def _run(self, *argv: str) -> bool:
        return subprocess.run(argv, env=self._environment, capture_output=True, check=False).returncode == 0


def _submit(environment: Mapping[str, str], directory: Path, chance: random.Random, number: int) -> None:
    script = Path(__file__).parent / "hostile_site" / "job.sh"
    work_us = round(1e6 * chance.choice((20.0, 40.0, 80.0, 160.0)))
    gang = number % 25 == 24
    size = ("--nodes=2", "--gres=gpu:4") if gang else (f"--gres=gpu:{chance.choice((1, 1, 1, 2, 4))}",)
    words = f"explsched:sweep=s{number // 12}&checkpoint=USR1"
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--requeue", f"--comment={words}", "--time=6", *size]
    kind = "none" if gang else "honest"
    done = subprocess.run(
        [*argv, str(script), kind, str(work_us), str(directory)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise click.ClickException(done.stderr.strip())


def _load(environment: Mapping[str, str], directory: Path, seconds: float, admin: Admin, half: int) -> int:
    """Keep jobs waiting for so long; the number of those that were submitted."""
    client = CliClient(environment=environment)
    chance = random.Random(half)  # noqa: S311  a workload, no secret
    number, admin_s, began_s = 0, 0.0, time.monotonic()
    label = f"load, part {half + 1} of 2"
    with click.progressbar(length=round(seconds), label=label, file=sys.stderr) as bar:
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            jobs = client.jobs()
            waiting = [job.job_id for job in jobs if job.state == "PENDING"]
            for _ in range(_WAITING - len(waiting)):
                _submit(environment, directory, chance, 1000 * half + number)
                number += 1
            if elapsed_s >= admin_s:
                admin.act([job.job_id for job in jobs if job.state == "RUNNING"], waiting)
                admin_s = elapsed_s + _ADMIN_EVERY_S
            bar.update(round(elapsed_s) - bar.pos)
            time.sleep(_POLL_S)
    return number


def _run(directory: Path, minutes: float) -> Mapping[str, object]:
    product = devcluster.Product(directory / "explsched")
    product.install(_SETTINGS)
    jobs = directory / "jobs"
    jobs.mkdir()
    with ExitStack() as at_end:
        cluster = devcluster.up(_SPEC, directory / "c")
        at_end.callback(devcluster.down, directory / "c")
        environment = {**os.environ, **cluster.env(), **product.env()}
        admin = Admin(environment, 1)
        number = 0
        for half in range(2):
            with product.daemon(environment):
                until(product.daemon_works, "the daemon works")
                number += _load(environment, jobs, 30 * minutes, admin, half)
        log = (directory / "c" / "log" / "slurmctld.log").read_text(errors="replace")
        (directory / "slurmctld.log").write_text(log)
    entries = list(read(product.directory / "audit.jsonl"))
    return {"minutes": minutes, "jobs": number, **compared(log.splitlines(), entries, admin.list)}


def compared(log: Iterable[str], entries: Sequence[AuditEntry], admins: Iterable[Written]) -> Mapping[str, object]:
    """The figures: slurmctld's log against the audit file and what others wrote.

    slurmctld logs some of the signals that it refuses: those are neither missing nor extra.
    """
    slurms = Counter(logged(log))
    taken = Counter(audited(entry for entry in entries if not entry.refused))
    refused = Counter(kill for kill in audited(entry for entry in entries if entry.refused) if kill.field == "Kill")
    ours = taken + Counter(admins)
    return {
        "slurm": Counter(one.field for one in slurms.elements()),
        "audit": Counter(one.field for one in taken.elements()),
        "refused": sum(bool(entry.refused) for entry in entries),
        "missing": [*map(str, (slurms - ours - refused).elements())],
        "extra": [*map(str, (ours - slurms).elements())],
    }


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="New directory to leave, with all logs.")
@click.option("--json", "as_json", is_flag=True)
def main(*, minutes: float, directory: Path | None, as_json: bool) -> None:
    """Run the load and compare."""
    with ExitStack() as at_end:
        if directory is None:
            directory = Path(at_end.enter_context(tempfile.TemporaryDirectory(prefix="audit_replay_")))
        else:
            directory.mkdir()
        found = _run(directory, minutes)
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
