"""Commands to Slurm, one after another and beside the reconcile loop: list the replicas' jobs, submit, cancel."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from explsched import log
from explsched.errors import SlurmError
from inference_gateway.control.background_tasks import BackgroundTasks, TaskResult
from inference_gateway.control.start_times import WaitingLine
from inference_gateway.replicas.submission import prefix
from slurm_plugin.client.changes import CancelJob, ChangeFailure
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import QueuedJob, SlurmJob

_LOG = logging.getLogger("explsched.gateway")
_MUCH_SOONER_S = 60.0
"""A replica uses another QOS than the preferred one only if it starts this much sooner."""
_OVER = ("already completing or completed", "Invalid job id")
"""scancel's messages for a job that has ended by itself in the meantime."""

SOONEST_S = 1.0
"""Least time between two listings, even after `hurry`: each is a request to slurmctld."""
_QUEUE_PAUSES = 50.0
"""Listing all jobs of a large site takes long: the next listing waits this many times as long as the last one took."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The jobs of the gateway's replicas, by job name, as Slurm had them when the listing began (since the epoch).

    `queue` has the jobs of all users, None if it was not needed.
    """

    began_s: float = 0.0
    jobs: Mapping[str, SlurmJob] = field(default_factory=dict)
    queue: tuple[QueuedJob, ...] | None = None


class SlurmSync:
    """Runs commands to Slurm one after another, in an executor with one thread.

    Attributes:
        listing: the newest listing of jobs.
        line: predicts starts from Slurm's queue.
        fault: why the last listing failed; None if it succeeded.

    """

    def __init__(self, client: SlurmClient, gateway: str, poll_s: float, executor: Executor) -> None:
        self._client = client
        self._prefix = prefix(gateway)
        self._poll_s = poll_s
        self._listings: BackgroundTasks[str, Listing] = BackgroundTasks(executor)
        self._submissions: BackgroundTasks[str, int] = BackgroundTasks(executor)
        self._cancellations: BackgroundTasks[tuple[int, ...], tuple[ChangeFailure, ...]] = BackgroundTasks(executor)
        self._due_s = 0.0
        self._last_s = 0.0
        self._queue_due_s = 0.0
        self._queue_last_s = 0.0
        self.listing = Listing()
        self.line = WaitingLine()
        self.fault: BaseException | None = None

    def list_jobs(self, began_s: float) -> Listing:
        """List the jobs synchronously. `began_s` is the current time. Raises `SlurmError`."""
        jobs = self._client.tagged_jobs(self._prefix)
        # Job ids increase: of two jobs with one name the later one counts.
        by_name = {job.name: job for job in sorted(jobs, key=lambda job: job.job_id)}
        return Listing(began_s, by_name, self._list_queue(began_s, by_name.values()))

    def _list_queue(self, now_s: float, jobs: Iterable[SlurmJob]) -> tuple[QueuedJob, ...] | None:
        """The jobs of all users, if ours wait, and rarely enough for the controller of a large site.

        Only forecasts need it: where all jobs are too many to be listed in time, our own still count.
        """
        waits = self._queue_last_s <= now_s < self._queue_due_s  # as in `advance`
        if waits or not any(job.state == "PENDING" for job in jobs):
            return None
        began_s = time.monotonic()
        try:
            return self._client.queue()
        except SlurmError as error:
            log.event(_LOG, logging.WARNING, "queue not listed, starts are forecast without it", why=str(error))
            return None
        finally:
            self._queue_last_s, self._queue_due_s = now_s, now_s + _QUEUE_PAUSES * (time.monotonic() - began_s)

    def advance(self, now_s: float) -> list[TaskResult[str, int]]:
        """Collect finished commands and list again if it is time; returns the finished submissions, by replica name."""
        for listing in self._listings.outcomes():
            self.fault = listing.error
            if listing.result is not None:
                self.listing = listing.result
                if self.listing.queue is not None:
                    ours = {job.job_id for job in self.listing.jobs.values()}
                    self.line.take(self.listing.began_s, self.listing.queue, ours)
        waits = self._last_s <= now_s < self._due_s  # a clock that was set back makes nobody wait for what it was
        if not waits and self._listings.start("list", self.list_jobs, now_s):
            self._last_s, self._due_s = now_s, now_s + self._poll_s
        return self._submissions.outcomes()

    def hurry(self) -> None:
        """List the jobs again soon, because something is about to change."""
        self._due_s = min(self._due_s, self._last_s + SOONEST_S)

    def submit(self, name: str, script: str, choices: Sequence[Sequence[str]]) -> None:
        """Submit the job of a replica, with one of several sets of options."""
        self._submissions.start(name, submit_soonest, self._client, script, choices)
        self.hurry()

    def cancel(self, job_ids: Sequence[int]) -> None:
        """Cancel jobs."""
        if job_ids:
            self._cancellations.start(tuple(job_ids), self._client.apply, [CancelJob(job_id) for job_id in job_ids])
            self.hurry()

    def refusals(self) -> list[str]:
        """Slurm's messages about refused cancellations since the last call."""
        found: list[str] = []
        for outcome in self._cancellations.outcomes():
            found += [str(outcome.error)] if outcome.error else [failure.message for failure in outcome.result or ()]
        return [message for message in found if not any(over in message for over in _OVER)]


def submit_soonest(client: SlurmClient, script: str, choices: Sequence[Sequence[str]]) -> int:
    """Submit a job with the first of these sets of options that starts it within a minute of the soonest.

    A set for which Slurm predicts no start is chosen only if it predicts none for any. Raises `SlurmError`.
    """
    if len(choices) == 1:
        return client.submit(script, choices[0])
    starts_s = [_start_s(client, script, options) for options in choices]
    soonest_s = min(starts_s)
    soon = (
        options for options, start_s in zip(choices, starts_s, strict=True) if start_s <= soonest_s + _MUCH_SOONER_S
    )
    return client.submit(script, next(soon))


def _start_s(client: SlurmClient, script: str, options: Sequence[str]) -> float:
    try:
        return client.expected_start_s(script, options)
    except SlurmError:
        return math.inf
