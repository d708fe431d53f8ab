"""Builds the policy's `Snapshot` from Slurm's records and the progress spool."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from explsched.log import event
from explsched.preemption_record import PREFIX, PreemptionRecord, RecordError, without_words
from explsched.preemption_record import read as read_record
from sched_policy.model import GpuRequest, Job, Node, StageProfile, Switch
from sched_policy.snapshot import Snapshot
from slurm_plugin import job_options
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode
from slurm_plugin.config import Config
from slurm_plugin.observation.absences import absences, owners, without_reserved_cpus
from slurm_plugin.observation.array_limits import throttled
from slurm_plugin.observation.gpu_hours import gpu_hours
from slurm_plugin.observation.memory import Remembered, served_first, served_in_vain
from slurm_plugin.observation.policy_job import exploration_of, is_present, options_of, policy_job, with_params
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.queue_rules import QueueRules
from slurm_plugin.observation.requeue_delay import returns_at_once
from slurm_plugin.observation.requirements import (
    Requirements,
    gpu_request,
    most_shards_per_gpu,
)
from slurm_plugin.observation.run_times import LearntRunTimes
from slurm_plugin.observation.spool import ProgressSpool, submitted_s
from slurm_plugin.observation.standing import (
    FairShares,
    leased_job,
)
from slurm_plugin.observation.trainings import SeenTraining

_LOG = logging.getLogger("explsched.observe")
_NO_PROGRESS = JobProgress()


class Observation(Struct, frozen=True):
    """What a pass sees of the cluster: the policy's snapshot, and what it was made from.

    Attributes:
        snapshot: the input of the policy.
        cluster: all of Slurm's records.
        jobs: of them the records of jobs that have not ended, by job id; of throttled arrays no more than may start.
        nodes: of them the records of nodes, by name.
        known: what the daemon knows from earlier passes.
        progress: what jobs have reported, by job id.
        option_faults: why the options of a job are ignored, by job id.
        preempted: records of jobs that have been or may be preempted, or whose AdminComment others use, by job id.
        unmodelled: why a waiting job is left to Slurm, by job id.
        spares: why a job is not preempted although it may allow that, by job id.
        returning: requeued jobs that need not wait for as long as Slurm delays them.

    """

    snapshot: Snapshot
    cluster: ClusterRecords
    jobs: Mapping[int, SlurmJob]
    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    known: Remembered = Remembered()
    progress: Mapping[int, JobProgress] = field(default_factory=dict)
    option_faults: Mapping[int, str] = field(default_factory=dict)
    preempted: Mapping[int, PreemptionRecord] = field(default_factory=dict)
    unmodelled: Mapping[int, str] = field(default_factory=dict)
    spares: Mapping[int, str] = field(default_factory=dict)
    returning: frozenset[int] = frozenset()

    def options(self, job_id: int) -> job_options.JobOptions | None:
        """The options in a job's comment; None if there are none, or they are ignored (`option_faults`)."""
        return None if job_id in self.option_faults else options_of(self.jobs[job_id])

    def gpu_hours(self, job: Job) -> float:
        """What a job that waits or runs has used."""
        past = self.preempted.get(job.job_id)
        sizes = {one.run: one.gpus for one in past.latest} if past else {}
        return gpu_hours(job, self.progress.get(job.job_id, _NO_PROGRESS).runs, sizes, self.snapshot.now_s)


def observe(
    seen: ClusterRecords,
    spool: ProgressSpool,
    now_s: float,
    config: Config | None = None,
    remembered: Remembered | None = None,
    run_times: LearntRunTimes | None = None,
) -> Observation:
    """Build the snapshot from Slurm's records and the reported progress.

    Args:
        seen: Slurm's records.
        spool: reads the progress files.
        now_s: time of the pass, seconds since the epoch.
        config: what is steered, and what an admin allows; None for the defaults.
        remembered: what a daemon knows from earlier passes.
        run_times: estimates run times; None for none.

    """
    config, known = config or Config(), remembered or Remembered()
    records = {job.job_id: job for job in throttled([job for job in seen.jobs if is_present(job)], now_s)}
    by_name = {node.name: node for node in without_reserved_cpus(seen)}
    nodes = tuple(by_name.values())
    ended = _ended(known.trainings, records)
    # What running jobs report is read first: the files of many that have ended or wait may take many passes.
    running_first = sorted(records.values(), key=lambda record: record.state == "PENDING")
    uids = {job.job_id: job.uid for job in running_first} | {job_id: one.uid for job_id, one in ended.items()}
    progress = spool.read(uids, now_s, submitted_s(records.values()))
    faults: dict[int, str] = {}
    preempted = {job_id: found for job_id, record in records.items() if (found := _preempted(record))}
    per_gpu = most_shards_per_gpu(nodes)
    returning = frozenset(
        job_id
        for job_id, record in records.items()
        if returns_at_once(record, preempted.get(job_id), progress.get(job_id, _NO_PROGRESS), known.lasting_runs, now_s)
    )
    queue = QueueRules(
        now_s=now_s,
        returning=returning,
        rules=config.order,
        known=known,
        limits=config.preemption,
        requirements=Requirements(nodes),
        topology=seen.topology,
        fair_shares=FairShares(records.values() if config.preemption.reach == "fair-share" else ()),
        owners=owners(seen),
        in_vain=served_in_vain(records, known.served_s, preempted.values()),
        served_first=served_first(records, known, preempted.values(), now_s) if seen.enforces_limits else frozenset(),
        has_nodes=bool(nodes),
        keeps_nodes=seen.limits_cpus,
        only_leases=bool(seen.reservations) and all(leased_job(lease.name) for lease in seen.reservations),
    )
    left_to_slurm: dict[int, str] = {}
    spares: dict[int, str] = {}
    jobs = []
    for record in _in_snapshot(records.values(), frozenset(config.slurm.partitions), per_gpu):
        job_id, past = record.job_id, preempted.get(record.job_id)
        reported = progress.get(job_id, _NO_PROGRESS)
        job = policy_job(_on_present_gpus(record, by_name), reported, _options(record, faults), past, per_gpu)
        job, why = queue.standing(job, record, past)
        if spared := queue.spared(record, past, reported):
            job, spares[job_id] = replace(job, is_spared=True), spared
        jobs.append(job)
        if job.holds_gpus and job.allows_preemption:
            waited_s = queue.last_wait_s(record)
            preempted[job_id] = replace(past or PreemptionRecord(record.submit_s), last_wait_s=waited_s)
        if why:
            left_to_slurm[job_id] = why
    jobs = _with_stages_of_equals(jobs, ended.values(), progress)
    if run_times is not None:
        jobs = run_times.with_estimates(jobs, now_s)
    sets = queue.requirements.names_by_node()
    above = seen.topology.switches
    planned_nodes = (_node(node, sets.get(node.name, frozenset()), above.get(node.name, ())) for node in nodes)
    past_trainings = [_with_last_reports(one.job, progress.get(job_id)) for job_id, one in ended.items()]
    taken = absences(seen, now_s)
    snapshot = Snapshot.of(now_s, planned_nodes, jobs, past_trainings, taken, known.ended_runs)
    return Observation(
        snapshot=snapshot,
        cluster=seen,
        jobs=records,
        nodes=by_name,
        known=known,
        progress=progress,
        option_faults=faults,
        preempted=preempted,
        unmodelled=left_to_slurm,
        spares=spares,
        returning=returning,
    )


def _ended(trainings: Mapping[int, SeenTraining], records: Mapping[int, SlurmJob]) -> dict[int, SeenTraining]:
    """Of the known trainings those that have ended, of sweeps that still have others."""
    if not trainings:
        return {}
    told = ((record.user, exploration_of(record)) for record in records.values())
    there = {(user, exploration.sweep) for user, exploration in told if exploration}
    return {
        job_id: one
        for job_id, one in trainings.items()
        if job_id not in records and one.job.exploration and (one.job.user, one.job.exploration.sweep) in there
    }


def _on_present_gpus(record: SlurmJob, nodes: Mapping[str, SlurmNode]) -> SlurmJob:
    """The record without the indices of its GPUs if a node has fewer: the node has changed since the job started."""
    held = ((nodes[name], indices) for name, indices in record.gpu_indices if name in nodes)
    return replace(record, gpu_indices=()) if any(max(indices) >= node.gpus for node, indices in held) else record


def _in_snapshot(records: Iterable[SlurmJob], steered: frozenset[str], per_gpu: int) -> Iterator[SlurmJob]:
    """The records of the jobs that policies see; `steered` partitions, empty for all; `per_gpu` shards of a GPU.

    Those of partitions that are not steered are among them only while they hold GPUs, because those GPUs are taken.
    Jobs without GPUs never are, so no policy can affect them.
    """
    for record in records:
        ours = not steered or steered.issuperset(record.partitions)
        if asks_for_gpus(record, per_gpu) and (ours or record.state != "PENDING"):
            yield record


def asks_for_gpus(record: SlurmJob, shards_per_gpu: int) -> bool:
    """Whether the job asks for GPUs or shards. Other jobs are never changed."""
    return gpu_request(record, shards_per_gpu).total > 0


def without_nodes(partitions: Iterable[str], nodes: Iterable[SlurmNode]) -> tuple[str, ...]:
    """The partitions without nodes: jobs of a misspelt name would silently not be steered."""
    known = {name for node in nodes for name in node.partitions}
    return tuple(name for name in partitions if name not in known)


def _with_stages_of_equals(
    jobs: list[Job], ended: Iterable[SeenTraining], progress: Mapping[int, JobProgress]
) -> list[Job]:
    """Jobs without measured stages get those of the same user's jobs with the same name and size.

    Muri (SIGCOMM 2022, section 5), too, measures each model once and not each job.
    """
    known: dict[tuple[str, str, GpuRequest], StageProfile] = {}
    for job in (*(one.job for one in ended), *jobs):
        measured = progress.get(job.job_id, _NO_PROGRESS).stages
        if measured is not None:
            equals = job.user, job.name, job.request
            known[equals] = min(known.get(equals, measured), measured)
    if not known:
        return jobs
    return [
        job
        if progress.get(job.job_id, _NO_PROGRESS).stages is not None
        else replace(job, profile=known.get((job.user, job.name, job.request), job.profile))
        for job in jobs
    ]


def _with_last_reports(job: Job, progress: JobProgress | None) -> Job:
    """A training that has ended, with what it reported since it was last seen."""
    if progress is None or job.exploration is None:
        return job
    return replace(
        job,
        points=progress.points(job.exploration.metric, max(job.request.total, 1)),
        exploration=with_params(job.exploration, progress),
        total_steps=progress.total_steps,
        earlier_s=max(job.earlier_s, sum(run.end_s - run.start_s for run in progress.runs)),
        has_completed=progress.is_done,
    )


def _node(node: SlurmNode, sets: frozenset[str], above: tuple[Switch, ...]) -> Node:
    return Node(node.name, node.gpus, node.partitions | sets, node.schedulable, node.gpu_memory_mib, above)


def _options(record: SlurmJob, faults: dict[int, str]) -> job_options.JobOptions | None:
    try:
        return options_of(record)
    except job_options.JobOptionError as error:
        faults[record.job_id] = str(error)
        return None


@lru_cache(maxsize=100_000)
def _log_once(fault: str, job_id: int, why: str) -> None:
    """Log a warning about what a user wrote. Cached, so that it appears once per job and not in every pass."""
    event(_LOG, logging.WARNING, fault, job=job_id, why=why)


def _preempted(record: SlurmJob) -> PreemptionRecord | None:
    """What preemption has cost the job, 0 if our entry cannot be understood; None if its AdminComment is empty."""
    if not record.admin_comment:
        return None
    try:
        return read_record(record.admin_comment, record.submit_s, record.restarts)
    except RecordError as error:
        _log_once("record of preemptions ignored", record.job_id, str(error))
        return PreemptionRecord(record.submit_s, others=without_words(record.admin_comment, PREFIX))
