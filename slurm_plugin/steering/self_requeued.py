"""Jobs that answer the checkpoint signal by requeueing themselves, as submitit's, Hydra's and Lightning's do."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from explsched.preemption_record import PreemptionRecord
from sched_policy.model import JobState
from slurm_plugin.steering.underway import Look, Underway

_LEAVING_S = 60.0
"""How long the clean-up after a job may take (KillWait, epilog): the time of a requeue that Slurm tells is its end."""


class SelfRequeued:
    """Signalled jobs, each until Slurm is seen to have the record of the requeue by which it has answered.

    A requeue after the grace period is no answer, nor is one by which the job is held, or whose node is down. By its
    owner it cannot be told from an answer.
    """

    def __init__(self, restored: Mapping[int, Underway]) -> None:
        self._running = dict(restored)  # when last seen; some may have left since the daemon before this one
        self.left: dict[int, Underway] = {}
        """Those that have left, and whose record may not be in Slurm."""

    def unrecorded(
        self, look: Look, grace_s: float, closed: AbstractSet[int] = frozenset()
    ) -> Mapping[int, tuple[Underway, PreemptionRecord]]:
        """The jobs that have answered, with their steps and records. Slurm does not update those in `closed` now."""
        found = {}
        for job_id, step in (self.left | self._running).items():
            if job_id not in closed and _has_answered(job_id, step, look, grace_s):
                record, past = look.slurm_jobs[job_id], look.records.get(job_id)
                left_s, others = min(record.submit_s, look.now_s), past.others if past else ""
                if (written := step.recorded_at(left_s, look.reported(job_id), others)) is not None:
                    found[job_id] = step, written
        return found

    def remember(self, signalled: Mapping[int, Underway], look: Look, grace_s: float) -> None:
        """A pass ends with these steps."""
        leaving = {n for n, job in look.jobs.items() if job.state is JobState.COMPLETING}
        kept = leaving | self.unrecorded(look, grace_s).keys()
        self.left = {n: signalled.get(n, step) for n, step in (self.left | self._running).items() if n in kept}
        self._running = {n: step for n, step in signalled.items() if look.runs_on(n, step) and not step.requeue_sent}

    def forget(self, job_id: int) -> None:
        """Slurm refuses the record for good."""
        self.left.pop(job_id, None)


def _has_answered(job_id: int, step: Underway, look: Look, grace_s: float) -> bool:
    """Whether the job waits for its next run since it has answered, and this is not recorded."""
    job, past = look.jobs.get(job_id), look.records.get(job_id)
    if job is None or job.state is not JobState.PENDING or job.restarts != step.restarts + 1:
        return False
    record, is_recorded = look.slurm_jobs[job_id], past is not None and past.of_run(step.restarts) is not None
    is_in_time = record.submit_s <= step.signalled_s + grace_s + _LEAVING_S
    return is_in_time and not is_recorded and not record.is_held and look.down.isdisjoint(step.nodes)
