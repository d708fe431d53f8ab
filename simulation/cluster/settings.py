"""How a trace is replayed under the `slurm` convention, and when its schedulers run their passes."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct

from explsched.errors import ExplschedError
from simulation.traces.trace import TraceJob
from slurm_plugin.client.records import ShardRule


class Period(Struct, frozen=True):
    """When one scheduler runs its passes: every `interval_s`, `offset_s` later than its multiples.

    With `measured_s`, ascending times, passes run then, and every `interval_s` after the last of them.
    """

    interval_s: float
    offset_s: float = 0.0
    measured_s: tuple[float, ...] = ()

    def next_s(self, not_before_s: float, after_s: float) -> float:
        """The first pass at `not_before_s` or later that is later than `after_s`, a pass or minus infinity."""
        coming = max(bisect_left(self.measured_s, not_before_s), bisect_right(self.measured_s, after_s))
        if coming < len(self.measured_s):
            return self.measured_s[coming]
        base_s = self.measured_s[-1] if self.measured_s else self.offset_s
        number = math.ceil((not_before_s - base_s) / self.interval_s)
        if math.isfinite(after_s):
            number = max(number, round((after_s - base_s) / self.interval_s) + 1)
        return base_s + number * self.interval_s


class Timer:
    """The next requested pass of one scheduler, if any. No two passes of a scheduler run at the same time."""

    def __init__(self, period: Period) -> None:
        self._period = period
        self._next_s = math.inf
        self._last_s = -math.inf

    def request(self, not_before_s: float) -> float | None:
        """Request a pass from then on; returns its time, or None if one is scheduled by then already."""
        next_s = self._period.next_s(not_before_s, self._last_s)
        if next_s >= self._next_s:
            return None
        self._next_s = next_s
        return next_s

    def fires(self, now_s: float) -> bool:
        """Whether the requested pass is due now; if so, the request is done."""
        if now_s != self._next_s:
            return False
        self._next_s, self._last_s = math.inf, now_s
        return True


class SimulationSettingsError(ExplschedError):
    """A setting of a simulation is out of range or unknown."""


class EstimateSource(StrEnum):
    """What policies know about the run times of jobs."""

    EXACT = "exact"
    LIMIT = "limit"
    NOISY = "noisy"
    LEARNT = "learnt"


class Estimates(Struct, frozen=True):
    """Where estimates of run times come from.

    `exact` is an oracle. `limit` gives the time limits of the trace and nothing else. `noisy` multiplies the true run
    time by exp(N(0, sigma)). `learnt` is what jobs that have ended by then tell (`slurm_plugin.observation.history`),
    as the daemon learns it from sacct. Policies that need no durations get none.
    """

    source: EstimateSource = EstimateSource.LIMIT
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Estimates:
        """Read `exact`, `limit`, `learnt` or `noisy:SIGMA`. Raises `SimulationSettingsError`."""
        name, _, number = text.partition(":")
        accepted = "accepted: exact, limit, learnt, noisy:SIGMA with a SIGMA from 0 to 10, as in noisy:0.5"
        if name in (EstimateSource.EXACT, EstimateSource.LIMIT, EstimateSource.LEARNT) and not number:
            return cls(EstimateSource(name))
        try:
            sigma = float(number)
        except ValueError:
            sigma = math.nan
        if name != EstimateSource.NOISY or not 0 <= sigma <= 10:
            raise SimulationSettingsError(f"estimates {text!r} unknown ({accepted})")
        return cls(EstimateSource.NOISY, sigma)

    def __str__(self) -> str:
        return f"{self.source}:{self.sigma:g}" if self.source is EstimateSource.NOISY else str(self.source)


_SECONDS = (
    "interval_s",
    "backfill_interval_s",
    "backfill_offset_s",
    "main_interval_s",
    "main_offset_s",
    "checkpoint_s",
    "restart_s",
)


def shard_rule(text: str) -> ShardRule:
    """Read how Slurm chooses the GPU of a shard. Raises `SimulationSettingsError`."""
    if text not in tuple(ShardRule):
        raise SimulationSettingsError(f"shard_rule: {text!r} unknown (accepted: {', '.join(ShardRule)})")
    return ShardRule(text)


class PassTimes(Struct, frozen=True):
    """When the passes of each scheduler of a live cluster began, ascending, as its log has it."""

    policy_s: tuple[float, ...] = ()
    backfill_s: tuple[float, ...] = ()
    main_s: tuple[float, ...] = ()


class Settings(Struct, frozen=True):
    """When schedulers run, what policies know, and what decisions cost.

    Attributes:
        interval_s: the policy plans at multiples of this, if anything has changed since (the daemon's interval_s).
        backfill_interval_s: Slurm's backfill starts the jobs, in the order that the policy gave them last, at
            multiples of this, if anything has changed since (bf_interval). The policy's own starts are then those of
            groups alone. None: the policy starts what it plans, as if backfill ran with it.
        backfill_offset_s: phase offset of the backfill cycle.
        main_interval_s: Slurm's main scheduler starts the jobs at the head of that order, up to the first that does not
            fit, at multiples of this, if anything has changed since (batch_sched_delay, sched_interval). None: it is
            off.
        main_offset_s: phase offset of the main scheduler's cycle.
        pass_times: when the passes of a live cluster ran; after the last of them passes go on at the interval. Ignored
            for a scheduler that has no interval.
        estimates: what policies know about the run times of jobs.
        history: jobs that had ended before the trace began, for estimates that are learnt.
        checkpoint_s: how long a preempted job holds its GPUs while it saves, without making progress.
        restart_s: how long a restarted job holds its GPUs while it loads, before it makes progress.
        shards: shards of each GPU; every job asks for one. The policy then only orders the jobs, and Slurm, whose main
            scheduler or backfill has to be on, gives each free shard to the next of them. None: jobs ask for whole
            GPUs, and the policy chooses the GPUs of groups.
        shard_rule: how Slurm chooses the GPU of a shard.
        scaling: an elastic job with n times its GPUs is n to the power of this times as fast; 1 is linear.
        seed: random seed for estimate noise.
        until_s: when the simulation ends, whatever still runs; None: when every job has ended.

    """

    interval_s: float = 30.0
    backfill_interval_s: float | None = None
    backfill_offset_s: float = 0.0
    main_interval_s: float | None = None
    main_offset_s: float = 0.0
    pass_times: PassTimes = PassTimes()
    estimates: Estimates = Estimates()
    history: tuple[TraceJob, ...] = ()
    checkpoint_s: float = 10.0
    restart_s: float = 30.0
    shards: int | None = None
    shard_rule: ShardRule = ShardRule.FIRST_FIT
    scaling: float = 1.0
    seed: int = 1
    until_s: float | None = None

    def __post_init__(self) -> None:
        """Raises `SimulationSettingsError` for numbers that are not finite or make no sense."""
        for name in _SECONDS:
            value = getattr(self, name)
            if value is None:
                continue
            least_s = 0.001 if name.endswith("interval_s") else 0.0
            if not (math.isfinite(value) and least_s <= value <= 86_400):
                raise SimulationSettingsError(
                    f"{name}: {value} is out of range (accepted: {least_s:g} to 86400 seconds)"
                )
        if self.shards is not None and self.backfill_interval_s is None and self.main_interval_s is None:
            raise SimulationSettingsError(
                "shards: nobody starts the jobs (accepted with passes of Slurm's backfill or main scheduler)"
            )
        for name in self.pass_times.__struct_fields__:
            times_s = getattr(self.pass_times, name)
            ascending = all(later_s > earlier_s for earlier_s, later_s in pairwise(times_s))
            if not (ascending and all(map(math.isfinite, times_s))):
                raise SimulationSettingsError(
                    f"pass_times.{name}: not ascending (accepted: finite times, each above the last)"
                )
        if not 0 <= self.scaling <= 1:
            raise SimulationSettingsError(f"scaling: {self.scaling} is out of range (accepted: 0 to 1)")
        if self.until_s is not None and not (math.isfinite(self.until_s) and self.until_s > 0):
            raise SimulationSettingsError(f"until_s: {self.until_s} is out of range (accepted: seconds above 0)")

    @property
    def policy_period(self) -> Period:
        """When the policy plans."""
        return Period(self.interval_s, measured_s=self.pass_times.policy_s)

    @property
    def backfill_period(self) -> Period | None:
        """When Slurm's backfill runs, None if the policy starts the jobs."""
        return _period(self.backfill_interval_s, self.backfill_offset_s, self.pass_times.backfill_s)

    @property
    def main_period(self) -> Period | None:
        """When Slurm's main scheduler runs, None if it never does."""
        return _period(self.main_interval_s, self.main_offset_s, self.pass_times.main_s)


def _period(interval_s: float | None, offset_s: float, measured_s: tuple[float, ...]) -> Period | None:
    return None if interval_s is None else Period(interval_s, offset_s, measured_s)
