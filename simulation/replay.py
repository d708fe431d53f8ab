"""One way to replay a trace under a named policy, whichever the conventions. Each is loaded only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from explsched.errors import PolicyError
from simulation.cluster.settings import EstimateSource, Settings
from simulation.traces.trace import ClusterShape, Trace

if TYPE_CHECKING:
    from sched_policy.policy import JobData
    from simulation.muri import MuriOptions
    from simulation.results.outcome import TraceOutcome


class TraceReplay(Struct, frozen=True):
    """What is replayed, and how: `Settings` are the convention `slurm`, `MuriOptions` the convention `muri`."""

    trace: Trace
    cluster: ClusterShape
    how: Settings | MuriOptions

    @property
    def conventions(self) -> str:
        """The convention's name."""
        return "slurm" if isinstance(self.how, Settings) else "muri"

    def check(self, policy: str) -> None:
        """Raise `PolicyError` for a name that the convention does not know."""
        if isinstance(self.how, Settings):
            from sched_policy import catalog

            catalog.build(policy)
            return
        from simulation import muri

        if policy not in muri.names():
            raise PolicyError(
                f"unknown policy {policy!r} (known under the muri conventions: {', '.join(muri.names())})"
            )

    def warnings(self, policies: Sequence[str]) -> tuple[str, ...]:
        """What these policies need and the trace lacks, and what they do without it; one sentence for each need.

        None for the convention `muri`, whose policies know every run time. Raises `PolicyError` as `check`.
        """
        if not isinstance(self.how, Settings):
            return ()
        from sched_policy import catalog
        from sched_policy.policy import JobData, needs_of

        affected: dict[str, list[str]] = {}
        for name in policies:
            for need in needs_of(catalog.build(name)):
                lacking = self._lacking(need.data)
                if lacking:
                    how_many = "no job has" if lacking == len(self.trace.jobs) else f"{lacking:,} jobs have no"
                    text = f"{how_many} {need.data}: {need.without}"
                    if need.data is JobData.RUN_TIMES:
                        text += " (--estimates exact or noisy:SIGMA supplies run times)"
                    affected.setdefault(text, []).append(name)
        return tuple(f"{', '.join(names)}: {text}" for text, names in affected.items())

    def _lacking(self, data: JobData) -> int:
        """How many jobs of the trace lack some data."""
        from sched_policy.policy import JobData

        jobs = self.trace.jobs
        match data:
            case JobData.RUN_TIMES:
                if isinstance(self.how, Settings) and self.how.estimates.source is not EstimateSource.LIMIT:
                    return 0
                # The end of a job that reports its progress is extrapolated from that.
                return sum(job.time_limit_s is None and job.learning is None for job in jobs)
            case JobData.LEARNING_CURVES:
                return sum(job.learning is None for job in jobs)
            case JobData.STAGE_TIMES:
                return sum(job.stages is None for job in jobs)
            case JobData.PRIORITIES:
                return 0 if any(job.priority for job in jobs) else len(jobs)

    def under(self, policy: str, progress: Callable[[int, int], None] = lambda _ended, _jobs: None) -> TraceOutcome:
        """The outcome under the policy of that name; `progress` is called with (jobs ended, jobs in all) if known.

        Raises `PolicyError` as `check`, and `ExplschedError` if the replay cannot go on.
        """
        self.check(policy)
        if isinstance(self.how, Settings):
            from sched_policy import catalog
            from simulation.cluster import engine

            return engine.simulate(self.trace, self.cluster, catalog.build(policy), self.how, progress)
        from simulation import muri

        return muri.simulate(self.trace, self.cluster, policy, self.how)
