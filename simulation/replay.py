"""One way to replay a trace under a named policy, whichever convention. Each is loaded only when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from explsched.errors import PolicyError
from simulation.cluster.settings import Settings
from simulation.traces.trace import ClusterShape, Trace

if TYPE_CHECKING:
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

    def under(self, policy: str, progress: Callable[[int, int], None] = lambda _ended, _jobs: None) -> TraceOutcome:
        """The outcome under the policy of that name; `progress` is told (jobs ended, jobs in all) where that is known.

        Raises `PolicyError` as `check`, and `ExplschedError` if the replay cannot go on.
        """
        self.check(policy)
        if isinstance(self.how, Settings):
            from sched_policy import catalog
            from simulation.cluster import engine

            return engine.simulate(self.trace, self.cluster, catalog.build(policy), self.how, progress)
        from simulation import muri

        return muri.simulate(self.trace, self.cluster, policy, self.how)
