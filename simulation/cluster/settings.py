"""How a trace is replayed under the `slurm` convention."""

from __future__ import annotations

import math
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct

from explsched.errors import ExplschedError
from simulation.cluster.rhythm import Rhythm


class SettingsError(ExplschedError):
    """A setting that makes no sense."""


class Source(StrEnum):
    """What policies are told about the length of jobs."""

    EXACT = "exact"
    LIMIT = "limit"
    NOISY = "noisy"


class Estimates(Struct, frozen=True):
    """Where estimates of run times come from.

    `exact` is an oracle. `limit` tells the time limits of the trace and nothing else. `noisy` multiplies the true run
    time by exp(N(0, sigma)). Policies that need no durations get none.
    """

    source: Source = Source.LIMIT
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Estimates:
        """Read `exact`, `limit` or `noisy:SIGMA`. Raises `SettingsError`."""
        name, _, number = text.partition(":")
        accepted = "accepted: exact, limit, noisy:SIGMA with a SIGMA from 0 to 10, as in noisy:0.5"
        if name in (Source.EXACT, Source.LIMIT) and not number:
            return cls(Source(name))
        try:
            sigma = float(number)
        except ValueError:
            sigma = math.nan
        if name != Source.NOISY or not 0 <= sigma <= 10:
            raise SettingsError(f"estimates {text!r} unknown ({accepted})")
        return cls(Source.NOISY, sigma)

    def __str__(self) -> str:
        return f"{self.source}:{self.sigma:g}" if self.source is Source.NOISY else str(self.source)


_SECONDS = (
    "interval_s",
    "backfill_interval_s",
    "backfill_offset_s",
    "main_interval_s",
    "main_offset_s",
    "checkpoint_s",
    "restart_s",
)


class Looks(Struct, frozen=True):
    """When each scheduler of a live cluster really looked at the queue, in rising order, as its log tells."""

    policy_s: tuple[float, ...] = ()
    backfill_s: tuple[float, ...] = ()
    main_s: tuple[float, ...] = ()


class Settings(Struct, frozen=True):
    """How time passes between a decision and its effect.

    Attributes:
        interval_s: the policy is asked at multiples of this, if anything has changed since (the daemon's interval_s).
        backfill_interval_s: Slurm's backfill starts the jobs, in the order in which the policy put them last, at
            multiples of this, if anything has changed since (bf_interval). The policy's own starts are then those of
            groups alone. None: the policy starts what it plans, as if backfill ran with it.
        backfill_offset_s: how much later than those multiples.
        main_interval_s: Slurm's main scheduler starts the jobs at the head of that order, up to the first that does not
            fit, at multiples of this, if anything has changed since (batch_sched_delay, sched_interval). None: it does
            nothing.
        main_offset_s: how much later than those multiples.
        looks: when they really looked; beyond the last time of each its interval goes on from there. Looks of a
            scheduler that has no interval are ignored.
        estimates: what policies are told about the length of jobs.
        checkpoint_s: a preempted job holds its GPUs for so long, saving, without making progress.
        restart_s: a job that starts again holds its GPUs for so long, loading, before it makes progress.
        scaling: an elastic job with n times its GPUs is n to the power of this times as fast; 1 is linear.
        seed: of the noise in estimates.
        until_s: the simulation ends here, whatever is still running; None runs until every job has ended.

    """

    interval_s: float = 30.0
    backfill_interval_s: float | None = None
    backfill_offset_s: float = 0.0
    main_interval_s: float | None = None
    main_offset_s: float = 0.0
    looks: Looks = Looks()
    estimates: Estimates = Estimates()
    checkpoint_s: float = 10.0
    restart_s: float = 30.0
    scaling: float = 1.0
    seed: int = 1
    until_s: float | None = None

    def __post_init__(self) -> None:
        """Raises `SettingsError` for numbers that are not finite or make no sense."""
        for name in _SECONDS:
            value = getattr(self, name)
            if value is None:
                continue
            least_s = 0.001 if name.endswith("interval_s") else 0.0
            if not (math.isfinite(value) and least_s <= value <= 86_400):
                raise SettingsError(f"{name}: {value} is out of range (accepted: {least_s:g} to 86400 seconds)")
        for name in self.looks.__struct_fields__:
            times_s = getattr(self.looks, name)
            rises = all(later_s > earlier_s for earlier_s, later_s in pairwise(times_s))
            if not (rises and all(map(math.isfinite, times_s))):
                raise SettingsError(f"looks.{name}: not in rising order (accepted: finite times, each above the last)")
        if not 0 <= self.scaling <= 1:
            raise SettingsError(f"scaling: {self.scaling} is out of range (accepted: 0 to 1)")
        if self.until_s is not None and not (math.isfinite(self.until_s) and self.until_s > 0):
            raise SettingsError(f"until_s: {self.until_s} is out of range (accepted: seconds above 0)")

    @property
    def policy_rhythm(self) -> Rhythm:
        """When the policy is asked."""
        return Rhythm(self.interval_s, measured_s=self.looks.policy_s)

    @property
    def backfill_rhythm(self) -> Rhythm | None:
        """When Slurm's backfill looks, None if the policy starts the jobs."""
        return _rhythm(self.backfill_interval_s, self.backfill_offset_s, self.looks.backfill_s)

    @property
    def main_rhythm(self) -> Rhythm | None:
        """When Slurm's main scheduler looks, None if it never does."""
        return _rhythm(self.main_interval_s, self.main_offset_s, self.looks.main_s)


def _rhythm(interval_s: float | None, offset_s: float, measured_s: tuple[float, ...]) -> Rhythm | None:
    return None if interval_s is None else Rhythm(interval_s, offset_s, measured_s)
