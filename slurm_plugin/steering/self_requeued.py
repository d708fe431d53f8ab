"""Jobs that answer the checkpoint signal by requeueing themselves, as submitit's, Hydra's and Lightning's do."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from explsched.preemption_record import PreemptionRecord
from sched_policy.model import JobState
from slurm_plugin.steering.underway import Look, Underway, recorded

_Signalled = tuple[Underway, PreemptionRecord]


class SelfRequeued:
    """What the requeue of each signalled job would have been recorded as when it was last seen to run.

    Afterwards Slurm tells no more when it was submitted, and since when it ran.
    """

    def __init__(self) -> None:
        self._last: dict[int, _Signalled] = {}

    def remember(self, signalled: Mapping[int, Underway], look: Look) -> None:
        """A pass ends. A job that is still completing, or that Slurm does not update, is not forgotten yet."""
        run_on = {n: step for n, step in signalled.items() if look.runs_on(n, step) and not step.requeue_sent}
        completing = {n for n in self._last if n in look.jobs and look.jobs[n].state is JobState.COMPLETING}
        kept = completing | self._waiting(look)
        self._last = {n: one for n, one in self._last.items() if n in kept}
        self._last |= {n: (step, recorded(n, step, look)) for n, step in run_on.items()}

    def take(self, look: Look, closed: AbstractSet[int]) -> Mapping[int, _Signalled]:
        """The jobs that wait for their next runs now, each once; those that Slurm does not update (`closed`) later."""
        return {job_id: self._last.pop(job_id) for job_id in self._waiting(look) - closed}

    def _waiting(self, look: Look) -> AbstractSet[int]:
        found = ((n, look.jobs[n], step) for n, (step, _record) in self._last.items() if n in look.jobs)
        return {n for n, job, step in found if job.state is JobState.PENDING and job.restarts == step.restarts + 1}
