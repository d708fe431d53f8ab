"""Which requeued jobs return at once, and which wait for as long as Slurm delays them."""

from __future__ import annotations

from collections.abc import Iterable

from explsched.preemption_record import PreemptionRecord
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.standing import waits_for_requeue_delay

LASTING_S = 120.0
"""As long as Slurm's usual delay. A job that is requeued sooner after its start may fail in the same way each time."""

Run = tuple[int, int]
"""A job, and how often it had been requeued when the run began."""


class LastRuns:
    """How long the runs of jobs were when last seen.

    In memory: of the runs before it a restarted daemon knows what `sxrun` has reported.
    """

    def __init__(self) -> None:
        self._length_s: dict[Run, float] = {}

    def note(self, jobs: Iterable[SlurmJob], now_s: float) -> None:
        """Take in the jobs of a pass."""
        seen_s: dict[Run, float] = {}
        for job in jobs:
            run, former = (job.job_id, job.restarts), (job.job_id, job.restarts - 1)
            if job.state == "RUNNING" and job.start_s is not None:
                seen_s[run] = now_s - job.start_s
            else:
                seen_s |= {one: self._length_s[one] for one in (run, former) if one in self._length_s}
        self._length_s = seen_s

    @property
    def lasting(self) -> frozenset[Run]:
        """The runs that have lasted."""
        return frozenset(run for run, length_s in self._length_s.items() if length_s >= LASTING_S)


def returns_at_once(
    record: SlurmJob, past: PreemptionRecord | None, reported: JobProgress, lasting: frozenset[Run], now_s: float
) -> bool:
    """Whether a job waits only for a delay by Slurm that serves nobody: its last run lasted, or the daemon ended it.

    Else the delay stays: it keeps a job that fails at each start from doing so every few seconds.
    """
    last = record.restarts - 1
    return waits_for_requeue_delay(record, now_s) and (
        (record.job_id, last) in lasting
        or (past is not None and any(one.run == last for one in past.latest))
        or any(run.restart == last and run.end_s - run.start_s >= LASTING_S for run in reported.runs)
    )
