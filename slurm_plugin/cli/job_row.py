"""One row for each job: what `status` lists and `explain` begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from explsched.parameters import listed
from explsched.preemption_record import PreemptionRecord
from sched_policy.model import Job, JobState
from slurm_plugin.cli.session import clock
from slurm_plugin.observation.progress import JobProgress

if TYPE_CHECKING:
    from slurm_plugin.cli.view import View

_SHORT = {JobState.PENDING: "PENDING", JobState.RUNNING: "RUNNING", JobState.COMPLETING: "COMPLETING"}


class JobRow(Struct, frozen=True):
    """One line of the report. `utility` is in percent of the sweep's known improvement per GPU-hour.

    `params` are its hyper-parameters; `params_changed` counts those that differed between its runs.
    `restarts` are all requeues, `preempted` those by explsched, and `lost_gpu_s` the work they cost.
    """

    jobid: int
    partition: str
    name: str
    user: str
    state: str
    gpus: int
    tasks: int
    sweep: str
    step: str
    metric: str
    value: float | None
    utility: float | None
    score: float | None
    gpu_hours: float
    restarts: int
    preempted: int
    lost_gpu_s: float
    planned: str
    reservation: str
    device: str
    sharing: str
    malformed: int
    params: str
    params_changed: int
    reason: str


COLUMNS = tuple(JobRow.__struct_fields__)


def rows(view: View) -> list[JobRow]:
    """All jobs of the view, best score first."""
    jobs = {job.job_id: job for job in view.seen.snapshot.jobs}
    return [_row(view, jobs[score.job_id]) for score in view.plan.scores]


def _row(view: View, job: Job) -> JobRow:
    record = view.seen.jobs[job.job_id]
    progress = view.seen.progress.get(job.job_id, JobProgress())
    utility = view.utilities.get(job.job_id)
    past = view.seen.preempted.get(job.job_id, PreemptionRecord(job.submit_s))
    promise = view.promises.get(job.job_id)
    planned_s = view.seen.snapshot.now_s if job.job_id in view.starts else promise.start_s if promise else None
    last = job.points[-1] if job.points else None
    total = f"/{job.total_steps}" if job.total_steps else ""
    return JobRow(
        jobid=job.job_id,
        partition=record.partition,
        name=job.name,
        user=job.user,
        state=_SHORT[job.state],
        gpus=job.request.total,
        tasks=job.array_tasks,
        sweep=(job.exploration.sweep or "") if job.exploration else "",
        step=f"{last.step}{total}" if last else "-",
        metric=job.exploration.metric if job.exploration else "",
        value=last.value if last else None,
        utility=360_000 * utility.value if utility and utility.measured else None,
        score=view.scores[job.job_id].value,
        gpu_hours=job.request.total * job.executed_s(view.seen.snapshot.now_s) / 3600,
        restarts=job.restarts,
        preempted=past.count,
        lost_gpu_s=past.lost_gpu_s,
        planned=clock(planned_s) if job.state is JobState.PENDING else "",
        reservation=record.reservation,
        device=view.sharers.device(job.job_id),
        sharing=view.sharers.summary(job.job_id),
        malformed=progress.malformed,
        params=listed(job.exploration.params if job.exploration else sorted(progress.told.values.items())),
        params_changed=len(progress.told.changed),
        reason=_reason(view, job, progress),
    )


def _reason(view: View, job: Job, progress: JobProgress) -> str:
    """The most useful thing to know: a fault of its own, Slurm's reason why it waits, who shares its GPU, its worth."""
    fault = view.seen.option_faults.get(job.job_id) or progress.refused
    if fault:
        return fault
    ours = view.sharers.summary(job.job_id) or view.scores[job.job_id].reason
    if job.state is not JobState.PENDING:
        return ours
    slurms = view.seen.jobs[job.job_id].reason
    if why := view.seen.unmodelled.get(job.job_id):
        return f"{slurms}; left to Slurm, because {why}"
    return f"{slurms}; {ours}" if job.eligible else slurms
