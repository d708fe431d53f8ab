"""One preemption from its signal to its requeue: when the job is ready to leave, and what that costs it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct, field
from msgspec.structs import replace

from explsched.preemption_record import Interruption, PreemptionRecord
from sched_policy.model import Job, JobState
from sched_policy.plan import Preemption
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.gpu_hours import held_gpus
from slurm_plugin.observation.progress import JobProgress


class Underway(Struct, frozen=True):
    """A preemption that has been signalled but not finished.

    `beneficiary` is the pending job that needs the GPUs, None if the preempted job itself benefits. `requeue_sent`: its
    cost has been recorded and its requeue is sent; in the file it is named as in earlier releases. `postponed_s` is
    when Slurm first took no record of its cost for the moment.

    The rest is what Slurm no longer tells once a job has left: its `record` with what leaving would have cost at the
    signal (None in files of earlier releases), the GPUs that it held, and its nodes.
    """

    signalled_s: float
    restarts: int
    checkpoint_before_s: float | None
    reason: str
    beneficiary: int | None
    requeue_sent: bool = field(default=False, name="noted")
    postponed_s: float | None = None
    record: PreemptionRecord | None = None
    held_gpus: float = 0.0
    nodes: tuple[str, ...] = ()

    def is_ready(self, progress: JobProgress, now_s: float, grace_s: float) -> bool:
        """Whether the job has saved the checkpoint that it was asked for, or its grace period is over."""
        return self._saved_s(progress) is not None or now_s - self.signalled_s >= grace_s

    def resumable_until_s(self, progress: JobProgress, grace_s: float) -> float:
        """As long after a checkpoint as saving it took: later the work since would cost more than to save again.

        Before that for the grace period: the job may still be saving.
        """
        if (saved_s := self._saved_s(progress)) is None:
            return self.signalled_s + grace_s
        return saved_s + min(saved_s - self.signalled_s, grace_s)  # by a wrong clock it may seem long

    def recorded_at(self, left_s: float, progress: JobProgress, others: str) -> PreemptionRecord | None:
        """The record of a job that left by itself at `left_s`; `others` are others' entries in its AdminComment."""
        if self.record is None:
            return None
        then, saved_s = self.record.latest[-1], self._saved_s(progress)
        from_s, before_gpu_s = (self.signalled_s, then.lost_gpu_s) if saved_s is None else (saved_s, 0.0)
        lost_gpu_s = before_gpu_s + self.held_gpus * max(0.0, left_s - from_s)
        cost = replace(then, time_s=left_s, lost_gpu_s=lost_gpu_s, reason=self.reason, beneficiary=self.beneficiary)
        return replace(self.record, others=others).plus(cost)

    def _saved_s(self, progress: JobProgress) -> float | None:
        return None if progress.checkpoint_s == self.checkpoint_before_s else progress.checkpoint_s


class Look(Struct, frozen=True):
    """What one pass has seen, by job id: jobs, Slurm's records, what jobs report, and what preemption has cost them.

    `down` are the nodes that are down.
    """

    jobs: Mapping[int, Job]
    slurm_jobs: Mapping[int, SlurmJob]
    progress: Mapping[int, JobProgress]
    records: Mapping[int, PreemptionRecord]
    now_s: float
    down: AbstractSet[str] = frozenset()

    def reported(self, job_id: int) -> JobProgress:
        """Nothing, for a job that does not report."""
        return self.progress.get(job_id, JobProgress())

    def runs_on(self, job_id: int, step: Underway) -> bool:
        """Whether a job still runs as it did when it was signalled."""
        job = self.jobs.get(job_id)
        return job is not None and job.state is JobState.RUNNING and job.restarts == step.restarts

    def still_waits(self, job_id: int) -> bool:
        """Whether a beneficiary is still pending and may still start, as far as Slurm says."""
        job = self.jobs.get(job_id)
        return job is not None and job.state is JobState.PENDING and job.eligible

    def handles_signal(self, job_id: int) -> bool:
        """Whether a job can be expected to have installed its signal handler.

        A job that reports progress has done so by its first report of the current run; before that it is still
        starting, and the signal would end it. So would it before the `sxrun` of a job that reports none. Of a job's
        first run without either this is unknown, and only its quantum protects it.
        """
        reported = self.reported(job_id)
        told = reported.reports or [run for run in reported.runs if run.under_sxrun]
        return not told or any(one.restart == self.jobs[job_id].restarts for one in told)


def interruption(job: Job, progress: JobProgress, reason: str, now_s: float) -> Interruption:
    """The cost of a requeue now: the work since the last checkpoint of this run, or the whole run if there is none.

    A job that saves checkpoints without reporting them loses less, but how much is unknown; it never loses more than
    its run time, in which the time for which it was suspended does not count. Reports that arrived while the pass was
    reading from Slurm are later than `now_s`.
    """
    start_s = now_s if job.start_s is None else job.start_s
    safe_s = max(start_s, progress.checkpoint_s or start_s)
    worked_until_s = max([now_s, *(report.time_s for report in progress.reports[-1:])])
    lost_gpu_s = held_gpus(job) * max(0.0, min(worked_until_s - safe_s, job.run_s(worked_until_s)))
    return Interruption(job.restarts, now_s, job.request.total, lost_gpu_s, reason)


def recorded(job_id: int, step: Underway, look: Look) -> PreemptionRecord:
    """The job's record, with what its requeue costs now."""
    job = look.jobs[job_id]
    cost = interruption(job, look.reported(job_id), step.reason, look.now_s)
    return look.records.get(job_id, PreemptionRecord(job.submit_s)).plus(replace(cost, beneficiary=step.beneficiary))


def signalled(preemption: Preemption, look: Look) -> Underway:
    """A job is asked to save and leave now."""
    job_id, saved_s = preemption.job_id, look.reported(preemption.job_id).checkpoint_s
    job, nodes = look.jobs[job_id], look.slurm_jobs[job_id].node_names
    step = Underway(look.now_s, job.restarts, saved_s, preemption.reason, preemption.beneficiary)
    return replace(step, record=recorded(job_id, step, look), held_gpus=held_gpus(job), nodes=nodes)
