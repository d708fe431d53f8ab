"""Makes one of Slurm's jobs, with its options and its reports, a job as policies see it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from explsched.preemption_record import PreemptionRecord
from sched_policy.model import Elastic, Exploration, GpuPart, Job, JobState, Parameter
from slurm_plugin import job_options
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.progress import JobProgress, Run
from slurm_plugin.observation.requirements import asks_for_a_part, gpu_allocation, gpu_request, part_of_each

Params = tuple[tuple[str, Parameter], ...]
"""Hyper-parameters, sorted by name."""

_STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,  # a suspended job keeps its GPUs
    "COMPLETING": JobState.COMPLETING,
    "CONFIGURING": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
}


def is_present(record: SlurmJob) -> bool:
    """Whether the job has not ended: Slurm lists ended jobs for some minutes."""
    return record.state in _STATES


def options_of(record: SlurmJob) -> job_options.JobOptions | None:
    """The options in the job's comment; None if it has none. Raises `JobOptionError`.

    A heterogeneous job is one training, which reports by the id of its first component: sbatch gives the others the
    same comment, but it makes no trainings of them.
    """
    options = job_options.parse(record.comment)
    is_first = record.het_job_id in (None, record.job_id)
    return options if options is None or is_first else replace(options, exploration=None)


def exploration_of(record: SlurmJob) -> Exploration | None:
    """What the job's comment says of its sweep; None if nothing, or nothing that can be understood."""
    try:
        options = options_of(record)
    except job_options.JobOptionError:
        return None
    return options.exploration if options else None


def policy_job(
    record: SlurmJob,
    progress: JobProgress,
    options: job_options.JobOptions | None,
    past: PreemptionRecord | None,
    per_gpu: int,
) -> Job:
    """The job as policies see it; `past` is what preemption has cost it, `per_gpu` how many shards a GPU has."""
    state = _STATES[record.state]
    earlier = [run for run in progress.runs if state is JobState.PENDING or run.restart < record.restarts]
    exploration = with_params(options.exploration if options else None, progress)
    if exploration is not None and exploration.checkpoint_signal is not None and not record.requeues:
        exploration = replace(exploration, checkpoint_signal=None)  # Slurm would refuse to put it back into the queue
    past = past or PreemptionRecord(record.submit_s)
    sizes = tuple((one.run, one.gpus) for one in past.latest)
    request, part = gpu_request(record, per_gpu), _part(record, options, per_gpu)
    return Job(
        job_id=record.job_id,
        request=request,
        submit_s=record.submit_s,
        name=record.name,
        user=record.user,
        partition=record.partition,
        state=state,
        start_s=None if state is JobState.PENDING else record.start_s,
        suspended_s=record.suspended_s,
        first_report_s=next((r.time_s for r in progress.reports if r.restart == record.restarts), None),
        queued_s=max([run.end_s for run in earlier] + [one.time_s for one in past.latest], default=None),
        time_limit_s=record.time_limit_s,
        allocation=gpu_allocation(record, per_gpu),
        earlier_s=_earlier_s(earlier, past, request.total, part.memory if part else 1.0),
        exploration=exploration,
        total_steps=progress.total_steps,
        points=() if exploration is None else progress.points(exploration.metric, max(record.gpus, 1), sizes),
        restarts=record.restarts,
        array_tasks=record.array_tasks,
        throttled_tasks=record.throttled_tasks,
        profile=progress.stages or (None if options is None else options.stages),
        guaranteed=options is None or options.guaranteed,
        elastic=_elastic(record, options),
        part=part,
        may_share=asks_for_a_part(record, per_gpu),
    )


def _earlier_s(reported: Iterable[Run], past: PreemptionRecord, gpus: int, of_each: float) -> float:
    """Run time of earlier runs: as reported, or what was lost of it when they were preempted, if that is longer.

    Of a job without reports a preempted run counts as lost as a whole, and nothing else tells how long it was.
    `of_each` is the part of each of its `gpus` GPUs that the job has; older runs count as if they had had as many.
    """
    run_s = {run.restart: run.end_s - run.start_s for run in reported}
    lost_s = {one.run: one.lost_gpu_s / (of_each * max(one.gpus, 1)) for one in past.latest}
    first = min(lost_s, default=0)  # of the preemptions before that one only the total is known
    older_s = sum(length_s for run, length_s in run_s.items() if run < first)
    latest = {run for run in (*run_s, *lost_s) if run >= first}
    return max(older_s, past.older_lost_gpu_s / (of_each * max(gpus, 1))) + sum(
        max(run_s.get(run, 0.0), lost_s.get(run, 0.0)) for run in latest
    )


def _part(record: SlurmJob, options: job_options.JobOptions | None, per_gpu: int) -> GpuPart | None:
    """The part of a GPU that a job asks for: its shards are its memory, and its time unless its options say more."""
    if not asks_for_a_part(record, per_gpu):
        return None
    memory = part_of_each(record, per_gpu)
    said = options.sharing if options else None
    request = memory if said is None or said.request_permille is None else said.request_permille / 1000
    limit = max(request, memory) if said is None or said.limit_permille is None else said.limit_permille / 1000
    return GpuPart(request, max(limit, request), memory)


def with_params(exploration: Exploration | None, progress: JobProgress) -> Exploration | None:
    """Add the hyper-parameters that the job has reported; they override those in its comment."""
    if exploration is None or not progress.parameters.values:
        return exploration
    return replace(exploration, params=all_params(exploration.params, progress))


def all_params(given: Params, progress: JobProgress) -> Params:
    """The hyper-parameters given at submission with those that were reported, which count, by name."""
    return tuple(sorted({**dict(given), **progress.parameters.values}.items()))


def _elastic(record: SlurmJob, options: job_options.JobOptions | None) -> Elastic | None:
    """The sizes at which the job can run; None if it keeps the size that it asks for.

    Not resized are waiting tasks of an array, which are one record; requests without a number of GPUs per node, or with
    another number beside it (--gpus, --gpus-per-task, --gpus-per-socket), which Slurm cannot change; and jobs with
    --switches, which was chosen for one size.
    """
    if options is None or options.elastic is None or record.gpus_per_node is None or record.array_tasks > 1:
        return None
    if record.most_switches or record.scattered_gpus:
        return None
    on_one_node = options.elastic.per_node is None
    fits = record.nodes == 1 if on_one_node else record.gpus_per_node == options.elastic.per_node
    return options.elastic if fits else None
