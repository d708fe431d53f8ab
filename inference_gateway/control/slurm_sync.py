"""Slurm as the control plane uses it: submissions, cancellations and looks at the jobs, all beside the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from inference_gateway.control.background_tasks import BackgroundTasks, TaskResult
from inference_gateway.replicas.submission import prefix
from slurm_plugin.client.changes import CancelJob, ChangeFailure
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import SlurmJob

_OVER = ("already completing or completed", "Invalid job id")
"""scancel's words for a job that has ended by itself in the meantime."""

SOONEST_S = 1.0
"""No two looks within this time, whatever the hurry: each is a request to slurmctld."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The jobs of the gateway's replicas, by job name, as Slurm had them when the look began (since the epoch)."""

    began_s: float = 0.0
    jobs: Mapping[str, SlurmJob] = field(default_factory=dict)


class SlurmSync:
    """Commands to Slurm one after the other in the executor, which has one thread.

    Attributes:
        listing: the newest look.
        fault: why the last look failed; None if it did not.

    """

    def __init__(self, client: SlurmClient, gateway: str, poll_s: float, executor: Executor) -> None:
        self._client = client
        self._prefix = prefix(gateway)
        self._poll_s = poll_s
        self._looks: BackgroundTasks[str, Listing] = BackgroundTasks(executor)
        self._submissions: BackgroundTasks[str, int] = BackgroundTasks(executor)
        self._cancellations: BackgroundTasks[tuple[int, ...], tuple[ChangeFailure, ...]] = BackgroundTasks(executor)
        self._due_s = 0.0
        self._last_s = 0.0
        self.listing = Listing()
        self.fault: BaseException | None = None

    def look(self, began_s: float) -> Listing:
        """One look, waiting for it. `began_s` is now. Raises `SlurmError`."""
        jobs = self._client.tagged_jobs(self._prefix)
        # Job ids rise: of two jobs of one name the later one counts.
        return Listing(began_s, {job.name: job for job in sorted(jobs, key=lambda job: job.job_id)})

    def advance(self, now_s: float) -> list[TaskResult[str, int]]:
        """Take what has come in, look again if it is time; returns the submissions that have ended, by replica name."""
        for look in self._looks.outcomes():
            self.fault = look.error
            if look.result is not None:
                self.listing = look.result
        if now_s >= self._due_s and self._looks.start("look", self.look, now_s):
            self._last_s, self._due_s = now_s, now_s + self._poll_s
        return self._submissions.outcomes()

    def hurry(self) -> None:
        """Something is about to change: look again soon."""
        self._due_s = min(self._due_s, self._last_s + SOONEST_S)

    def submit(self, name: str, script: str, options: Sequence[str]) -> None:
        """Submit the job of a replica."""
        self._submissions.start(name, self._client.submit, script, options)
        self.hurry()

    def cancel(self, job_ids: Sequence[int]) -> None:
        """Cancel jobs."""
        if job_ids:
            self._cancellations.start(tuple(job_ids), self._client.apply, [CancelJob(job_id) for job_id in job_ids])
            self.hurry()

    def refusals(self) -> list[str]:
        """What Slurm said about cancellations it refused, since the last call."""
        said: list[str] = []
        for outcome in self._cancellations.outcomes():
            said += [str(outcome.error)] if outcome.error else [failure.message for failure in outcome.result or ()]
        return [words for words in said if not any(over in words for over in _OVER)]
