"""The adapter that drives Slurm's own commands. Works with every Slurm since 22.05.

One process per kind of read, whatever the number of jobs, those of a pass at the same time. squeue is told random field
and record marks, so that no job name or comment can be taken for anything else.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from explsched.errors import SlurmError, SlurmUnreachableError
from explsched.log import event
from slurm_plugin.client import batch, devices, notation, parse, process, squeue
from slurm_plugin.client.capabilities import (
    Capabilities,
    SlurmVersion,
    enforces_limits,
    has_database,
    preempts_by_qos,
    requeue_delay_s,
    respects_topology,
    settings,
)
from slurm_plugin.client.changes import Change, ChangeFailure, NotNow, SetSiteFactor
from slurm_plugin.client.parse import readable
from slurm_plugin.client.records import (
    ClusterRecords,
    ControllerLoad,
    QueuedJob,
    ShardRule,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    Topology,
)
from slurm_plugin.client.writer import Writer

_TOPOLOGY_LASTS_S = 600.0
"""Up to 23.02 `scontrol reconfigure` takes a new topology.conf without a restart."""
_LIMITS_LAST_S = 60.0

_EARLIEST_S = 1_000_000.0
"""Slurm's commands take no time before, in January 1970."""

_LOG = logging.getLogger("explsched.slurm")


class CliClient:
    """Slurm through squeue, sprio, scontrol, scancel and sdiag.

    `timeout_s` bounds each command; `environment` is added to the process's own (SLURM_CONF, PATH). In a federation
    it sees the jobs of its own cluster only, whatever FederationParameters say.
    """

    name = "cli"

    def __init__(self, timeout_s: float = 30.0, environment: Mapping[str, str] | None = None) -> None:
        self._timeout_s = timeout_s
        self._environment = process.environment(environment or {})
        self._reader = squeue.JobReader()
        self._names: Mapping[int, str] = {}
        self._settings: Mapping[str, str] = {}
        self._topology = Topology()
        self._memory_by_cpu: Mapping[str, int] = {}
        self._tiers: Mapping[str, int] = {}
        self._topology_of: tuple[str, tuple[str, ...]] | None = None
        self._topology_until_s = 0.0
        self._limits_cpus = False
        self._limits_until_s = 0.0
        self._ahead_s = 0.0  # how far our clock is ahead of slurmctld's, as known from its load
        # Threads of the first look serve all later ones, when memory may be short.
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="slurm")

    def capabilities(self) -> Capabilities:
        """What this Slurm can do. Its settings as of now are those that later reads go by."""
        version = self._version()
        self._settings = settings(self._read("scontrol", "show", "config"))
        return Capabilities(version, self._settings)

    def jobs(self) -> tuple[SlurmJob, ...]:
        """All jobs that wait, run or complete. A record that cannot be read is logged and left out."""
        jobs = self._present()
        priorities = self._priorities() if any(job.state == "PENDING" for job in jobs) else {}
        return self._completed(jobs, priorities)

    def tagged_jobs(self, prefix: str) -> tuple[SlurmJob, ...]:
        """The user's own jobs with a word in their comment that begins with `prefix`, also those that ended lately."""
        jobs = self._squeue(squeue.JobReader(), "--me", "--states=all")
        return tuple(job for job in jobs if any(word.startswith(prefix) for word in job.comment.split()))

    def queue(self) -> tuple[QueuedJob, ...]:
        """What runs and waits, of all users as far as they may be seen, each task of an array for itself."""
        selection = ("--local", "--all", "--array", f"--states={squeue.QUEUE_STATES}")
        out = self._read("squeue", *selection, "--noheader", "-o", squeue.QUEUE_FORMAT)
        return readable("squeue", squeue.queued, out.splitlines())

    def part(self, name: str) -> int:
        """The id of a task of a job array, such as 4711_3, or of a component of a heterogeneous job, such as 4711+1.

        That of a task that waits in its array's record is that record's. Raises `SlurmError` for a part that Slurm does
        not know, or no longer.
        """
        whole, plus, _ = name.partition("+")  # of components squeue tells all
        try:
            out = self._read("squeue", "--local", "--noheader", "--states=all", "--jobs", whole, "-o", "%A %i")
            found = [row.split() for row in out.splitlines()]
            return [int(job_id) for job_id, shown in found if not plus or shown == name][0]  # noqa: RUF015  LookupError
        except SlurmUnreachableError:
            raise
        except (SlurmError, LookupError) as error:
            part = "component" if plus else "task"
            raise SlurmError(
                f"job {name}: Slurm has no such {part}, or no longer has it; sacct shows its JobIDRaw"
            ) from error

    def run_time_s(self, job_id: int) -> float:
        """How long the last run of a job took, or takes; 0 if it never began. Raises `SlurmError` for unknown jobs."""
        out = self._read("squeue", "--local", "--noheader", "--states=all", "--jobs", str(job_id), "-o", "%M")
        try:
            return notation.duration_s(out.split()[0]) or 0.0
        except (LookupError, ValueError) as error:
            raise SlurmError(f"squeue: run time of job {job_id}: {out.strip()!r}") from error

    def submit(self, script: str, options: Sequence[str]) -> int:
        """Submit a batch script. On `SlurmUnreachableError` the job may have been accepted all the same."""
        argv = ["sbatch", "--parsable", *options]
        answer = process.run(argv, self._timeout_s, process.submission(self._environment), stdin=script)
        match = re.match(r"(\d+)", answer.out)
        if answer.returncode != 0 or match is None:
            raise SlurmError(f"sbatch refused the job: {(answer.err or answer.out).strip()}")
        return int(match[1])

    def expected_start_s(self, script: str, options: Sequence[str]) -> float:
        """When Slurm would start such a job, by `sbatch --test-only`, which reckons with those that wait before it."""
        argv = ["sbatch", "--test-only", *options]
        answer = process.run(argv, self._timeout_s, process.submission(self._environment), stdin=script)
        match = re.search(r"to start at (\S+)", answer.err)
        if answer.returncode != 0 or match is None:
            raise SlurmError(f"sbatch --test-only tells no start: {(answer.err or answer.out).strip()}")
        try:
            return datetime.fromisoformat(match[1]).timestamp()
        except ValueError as error:
            raise SlurmError(f"sbatch --test-only: found {match[1]!r}, expected a date and time") from error

    def nodes(self) -> tuple[SlurmNode, ...]:
        """All nodes."""
        lines = self._read("scontrol", "show", "node", "--all", "--detail", "--oneliner").splitlines()
        return readable("scontrol show node", parse.node, [line for line in lines if line.startswith("NodeName=")])

    def partitions(self) -> tuple[str, ...]:
        """Names of all partitions, also of those of whose nodes Slurm shows none."""
        lines = self._read("scontrol", "show", "partition", "--all", "--oneliner").splitlines()
        return tuple(line.split()[0].partition("=")[2] for line in lines if line.startswith("PartitionName="))

    def reservations(self) -> tuple[SlurmReservation, ...]:
        """All reservations."""
        lines = self._read("scontrol", "show", "reservation", "--oneliner").splitlines()
        ours = [line for line in lines if line.startswith("ReservationName=")]
        return readable("scontrol show reservation", parse.reservation, ours)

    def look(self) -> ClusterRecords:
        """Nodes, jobs and reservations; Slurm answers the commands at the same time."""
        priorities = process.beside(self._readers, self._priorities)
        nodes = process.beside(self._readers, self.nodes)
        reservations = process.beside(self._readers, self.reservations)
        exclusions = process.beside(self._readers, self._exclusions)
        jobs = self._present()
        completed = self._completed(jobs, priorities.result())
        shared = any(job.shards_per_node for job in jobs)
        rule = parse.shard_rule(self._known_settings()) if shared else ShardRule.FIRST_FIT
        found = nodes.result()
        sizes = {node.name: node.gpus for node in found}
        topology, excluded = self.topology(found), exclusions.result()
        holding = (squeue.with_whole_nodes(job, sizes) for job in completed)
        asking = (squeue.with_memory_of_cpus(job, self._memory_by_cpu) for job in holding)
        told = (replace(job, excluded_nodes=excluded[job.job_id]) if job.job_id in excluded else job for job in asking)
        limits_cpus = any("elastic=" in job.comment for job in completed) and self._has_limits_on_cpus()
        known, reserved = self._known_settings(), reservations.result()
        rules = (limits_cpus, self._tiers, enforces_limits(known), preempts_by_qos(known))
        return ClusterRecords(found, tuple(told), reserved, rule, topology, *rules)

    def topology(self, nodes: Sequence[SlurmNode]) -> Topology:
        """Where these nodes are in the network; asked again when nodes change, after a restart, and now and then.

        With it the partitions' defaults of memory and their tiers are read.
        """
        known = self._known_settings()
        of = (known.get("BOOT_TIME", ""), tuple(node.name for node in nodes))
        if of != self._topology_of or time.monotonic() > self._topology_until_s:
            # It fails where there is nothing to show.
            shown = process.run(["scontrol", "show", "topology"], self._timeout_s, self._environment).out
            argv = ["scontrol", "show", "partition", "--all", "--oneliner"]
            partitions = process.run(argv, self._timeout_s, self._environment).out
            self._topology = parse.network(shown, partitions, is_respected=respects_topology(known))
            self._memory_by_cpu, self._tiers = parse.memory_by_cpu(known, partitions), parse.tiers(partitions)
            self._topology_of, self._topology_until_s = of, time.monotonic() + _TOPOLOGY_LASTS_S
            if self._topology.fault:
                event(_LOG, logging.WARNING, "topology unknown, gangs get no leases", why=self._topology.fault)
        return self._topology

    def _has_limits_on_cpus(self) -> bool:
        """Asked now and then, for elastic jobs alone: on a large site the answer is long. True where none comes."""
        if not enforces_limits(self._known_settings()):
            return False
        if time.monotonic() > self._limits_until_s:
            argv = ["scontrol", "show", "assoc_mgr", "flags=assoc,qos"]
            try:
                answer = process.run(argv, self._timeout_s, self._environment)
                self._limits_cpus = answer.returncode != 0 or parse.limits_cpus(answer.out)
            except SlurmUnreachableError:
                self._limits_cpus = True
            self._limits_until_s = time.monotonic() + _LIMITS_LAST_S
        return self._limits_cpus

    def clusters(self) -> tuple[str, ...]:
        """Names of the clusters in the accounting database. Raises `SlurmError` where slurmdbd does not answer."""
        return tuple(self._read("sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=Cluster").split())

    def accounting(self, fields: Sequence[str], since_s: float, until_s: float) -> list[list[str]]:
        """Sacct's rows of that period: one for each run of a job, those of other users as far as Slurm shows them.

        Raises `SlurmError`.
        """
        mark = f"\x1f{os.urandom(4).hex()}"
        start_s = max(since_s, _EARLIEST_S)
        period = (f"--starttime={batch.moment(start_s)}", f"--endtime={batch.moment(until_s)}")
        what = ("--local", "--allusers", "--allocations", "--duplicates", "--noheader", "--noconvert", "--parsable")
        out = self._read("sacct", *what, *period, f"--delimiter={mark}", f"--format={','.join(fields)}")
        cells = out.split(mark)[:-1]  # each ends with the mark, and free text may hold line breaks
        starts = range(0, len(cells), len(fields))
        return [[cells[at].removeprefix("\n"), *cells[at + 1 : at + len(fields)]] for at in starts]

    def gpu_history(self, since_s: float, until_s: float) -> list[tuple[float, float, int]]:
        """How many GPUs the cluster had, by slurmdbd: from when, until when, GPUs.

        Empty where it does not count GPUs. Raises `SlurmError`, also where PrivateData hides events.
        """
        period = (f"start={batch.moment(max(since_s, _EARLIEST_S))}", f"end={batch.moment(until_s)}")
        what = ("show", "event", "event=cluster", *period, "format=Start,End,StateRaw,TRES")
        out = self._read("sacctmgr", "--noheader", "--parsable2", *what)
        try:
            return list(parse.gpu_history(out, since_s, until_s))
        except ValueError as error:
            raise SlurmError(f"sacctmgr show event: {error}") from error

    def load(self) -> ControllerLoad:
        """How busy slurmctld is."""
        asked_s, out = time.time(), self._read("sdiag")
        try:
            load = parse.load(out)
        except ValueError as error:
            raise SlurmError(f"sdiag: {error}") from error
        self._ahead_s = load.ahead_s(asked_s, time.time())
        return load

    def apply(self, changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
        """Carry out the changes in order, in one batch; return those that Slurm refused."""
        has_factors = any(isinstance(change, SetSiteFactor) for change in changes)
        program = batch.find(self._version().release, self._timeout_s, self._environment) if has_factors else None
        writer = Writer(self._timeout_s, self._environment, self._names, self._readers)
        return self._for_good(writer.apply(changes, program))

    def _for_good(self, failures: Sequence[ChangeFailure]) -> tuple[ChangeFailure, ...]:
        """Without a database the record that Slurm says it awaits never comes, and the refusal is for the whole run."""
        if has_database(self._settings):
            return tuple(failures)
        return tuple(ChangeFailure(one.change, one.message) if isinstance(one, NotNow) else one for one in failures)

    def _version(self) -> SlurmVersion:
        """Asked anew for each use: Slurm may be upgraded while we run, and its commands print other fields then."""
        try:
            return SlurmVersion.read(self._read("scontrol", "-V"))
        except ValueError as error:
            raise SlurmError(f"scontrol -V: {error}") from error

    def _known_settings(self) -> Mapping[str, str]:
        if not self._settings:
            self._settings = settings(self._read("scontrol", "show", "config"))
        return self._settings

    def _completed(self, jobs: Sequence[SlurmJob], priorities: Mapping[int, parse.Priority]) -> tuple[SlurmJob, ...]:
        """The jobs with their site factors and native priorities, and with their devices where these matter."""
        lags = self._lags(jobs, priorities, time.time() - self._ahead_s)
        delay_s = requeue_delay_s(self._known_settings() if any(job.restarts for job in jobs) else {})
        completed = []
        for job in jobs:
            found = priorities.get(job.job_id)
            known = {} if found is None else _of_priority(job, found, lags.get(job.job_id, 0))
            delay = {"requeue_delay_s": delay_s} if delay_s != job.requeue_delay_s else {}
            more = {**known, **delay}
            completed.append(replace(job, **more) if more else job)
        nodes = devices.nodes_to_ask(jobs)
        return devices.with_held(completed, self._devices(nodes)) if nodes else tuple(completed)

    def _lags(
        self, jobs: Sequence[SlurmJob], priorities: Mapping[int, parse.Priority], now_s: float
    ) -> Mapping[int, int]:
        """How far Slurm is behind with the age of each waiting job."""
        rule = parse.AgeRule.of(self._known_settings()) if priorities else None
        if rule is None:
            return {}
        waiting = [job for job in jobs if job.accrue_s is not None and job.job_id in priorities]
        waiting = [job for job in waiting if priorities[job.job_id].natives]
        return parse.by_one_clock(
            {job.job_id: rule.lag(priorities[job.job_id].age, job.accrue_s or 0.0, now_s) for job in waiting}
        )

    def _devices(self, nodes: Mapping[int, Sequence[str]]) -> dict[int, devices.HeldGpus]:
        told = self._read("scontrol", "show", "job", "--local", "--all", "--detail", "--oneliner")
        return devices.held_gpus(told, nodes)

    def _present(self) -> tuple[SlurmJob, ...]:
        """The jobs that have not ended; the names of tasks of arrays are kept for the `Writer`."""
        jobs = self._squeue(self._reader)
        tasks = (job for job in jobs if job.array_task_id is not None)
        self._names = {job.job_id: f"{job.array_job_id}_{job.array_task_id}" for job in tasks}
        return jobs

    def _squeue(self, reader: squeue.JobReader, *selection: str) -> tuple[SlurmJob, ...]:
        """The jobs that squeue selects. A record that cannot be read is logged and left out.

        Unless told otherwise squeue shows a requeued task of an array as one of those that have not run yet.
        """
        nonce = os.urandom(4).hex()
        field_mark, record_mark = f"\x1f{nonce}f", f"\x1f{nonce}r"
        names = squeue.field_names(self._version())
        suffixes = [field_mark] * (len(names) - 1) + [record_mark]
        fields = ",".join(f"{name}:{suffix}" for name, suffix in zip(names, suffixes, strict=True))
        reader.begin(field_mark, names, time.time())
        out = self._read("squeue", "--local", "--all", "--array-unique", *selection, "--noheader", "-O", fields)
        return readable("squeue", reader.job, squeue.records(out, record_mark))

    def _exclusions(self) -> Mapping[int, tuple[str, ...]]:
        """The nodes that jobs exclude, of those that exclude some. `squeue -O` of 22.05 has no such field."""
        selection = ("--local", "--all", "--array-unique", "--noheader")
        out = self._read("squeue", *selection, "-o", squeue.EXCLUSION_FORMAT)
        return {job_id: nodes for job_id, nodes in readable("squeue", squeue.exclusion, out.splitlines()) if nodes}

    def _priorities(self) -> dict[int, parse.Priority]:
        """Site factors and natives of pending jobs; none where the site does not run priority/multifactor."""
        argv = ["sprio", "--local", "--noheader", "-o", parse.PRIORITY_FORMAT]
        answer = process.run(argv, self._timeout_s, self._environment)
        if answer.returncode != 0:
            event(_LOG, logging.WARNING, "priorities unknown", why=answer.err.strip())
            return {}
        return parse.priorities(answer.out)

    def _read(self, *argv: str) -> str:
        return process.read(argv, self._timeout_s, self._environment)


def _of_priority(job: SlurmJob, found: parse.Priority, lag: int) -> dict[str, Any]:
    natives = found.natives or (job.priority,)
    return {"site_factor": found.site_factor, "natives": natives, "fair_share": found.fair_share, "age_lag": lag}
