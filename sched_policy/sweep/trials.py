"""The input of a sweep's strategy (its trainings, their reports, the cost of moving them) and its decisions.

Each decision has a reason for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np
from msgspec import Struct

from sched_policy.model import LARGEST_VALUE, Direction, Parameter, ProgressPoint
from sched_policy.snapshot import Bools, Floats


class TrialState(StrEnum):
    """The state of a training."""

    WAITING = "waiting"  # it has never run
    PAUSED = "paused"  # it has run, and waits for GPUs again
    RUNNING = "running"
    LEAVING = "leaving"  # it saves its checkpoint, and still holds its GPUs
    COMPLETED = "completed"  # it has ended by itself and is said to have succeeded, at whatever step
    ENDED = "ended"  # it has ended otherwise, such as stopped for good, or nothing is said


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One training of a sweep.

    Attributes:
        trial_id: its id, unique in the sweep. Ties break by it.
        state: its state.
        steps: the steps at which it reported, increasing, shape (R,).
        values: the values reported there, oriented so that lower is better, shape (R,); finite numbers only.
        total_steps: its number of steps, None if unknown.
        params: its hyper-parameters; empty if unknown.
        gpus: GPUs of its gang.
        step_s: run time of a step in seconds, None while unknown.
        may_stop: whether it allows early stopping.
        granted_step: the step of its last report when it was last allowed to continue (`Job.granted_step`).

    """

    trial_id: int
    state: TrialState
    steps: Floats = field(default_factory=lambda: np.empty(0))
    values: Floats = field(default_factory=lambda: np.empty(0))
    total_steps: float | None = None
    params: Mapping[str, Parameter] = field(default_factory=dict)
    gpus: int = 1
    step_s: float | None = None
    may_stop: bool = True
    granted_step: float = float("inf")

    @property
    def is_running(self) -> bool:
        """Whether it runs and is not leaving."""
        return self.state is TrialState.RUNNING

    @property
    def waits(self) -> bool:
        """Whether it waits for GPUs."""
        return self.state in (TrialState.WAITING, TrialState.PAUSED)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good."""
        return self.state in (TrialState.COMPLETED, TrialState.ENDED)


@dataclass(frozen=True)
class Sweep:
    """The trainings of one sweep at one moment, in order of their ids.

    Attributes:
        trials: all trainings; ended ones show which late values follow from early ones.
        restart_s: cost of restarting a paused training, in seconds of its GPUs.
        checkpoint_s: cost of pausing one, in seconds of its GPUs.

    """

    trials: tuple[Trial, ...]
    restart_s: float = 30.0
    checkpoint_s: float = 10.0

    @classmethod
    def of(cls, trials: Iterable[Trial], restart_s: float = 30.0, checkpoint_s: float = 10.0) -> Sweep:
        """A sweep of these trainings, given in any order."""
        return cls(tuple(sorted(trials, key=lambda trial: trial.trial_id)), restart_s, checkpoint_s)

    @cached_property
    def has_ended(self) -> Bools:
        """Which trainings have ended, shape (N,)."""
        return np.array([trial.has_ended for trial in self.trials], dtype=np.bool_)

    @cached_property
    def params(self) -> tuple[str, ...]:
        """Names of the hyper-parameters that differ. Values that are missing may be told once a training runs."""
        first: dict[str, Parameter] = {}
        told = ((name, value) for t in self.trials for name, value in t.params.items() if value is not None)
        return tuple(sorted({name for name, value in told if first.setdefault(name, value) != value}))

    @cached_property
    def runs(self) -> Bools:
        """Which trainings run and are not leaving, shape (N,)."""
        return np.array([trial.is_running for trial in self.trials], dtype=np.bool_)

    @cached_property
    def moving_s(self) -> Floats:
        """The cost of giving GPUs to each training that does not hold any, in seconds of its time, shape (N,)."""
        return np.where(self.runs, 0.0, self.restart_s + self.checkpoint_s)

    @cached_property
    def reached(self) -> Floats:
        """The step of each training's last report, 0 without any, shape (N,)."""
        return np.array([t.steps[-1] if t.steps.size else 0.0 for t in self.trials], dtype=np.float64)

    @cached_property
    def total_steps(self) -> Floats:
        """Steps of each training, shape (N,); the largest known number where one did not say, endless if none did."""
        said = np.array([np.nan if t.total_steps is None else t.total_steps for t in self.trials], dtype=np.float64)
        usual = 1e18 if np.isnan(said).all() else max(np.nanmax(said), self.reached.max())
        total: Floats = np.maximum(np.where(np.isnan(said), usual, said), self.reached)
        return np.maximum(total, 1e-9)

    @cached_property
    def progress(self) -> Floats:
        """Progress of each training by its last report, as a fraction of its steps, shape (N,)."""
        return np.minimum(1.0, self.reached / self.total_steps)

    @cached_property
    def length_s(self) -> Floats:
        """Run time of each training from its first step to its last, shape (N,).

        Where the time of a step is unknown, the median of the other trainings is used; without any, 1 s.
        """
        step_s = np.array([np.nan if t.step_s is None else t.step_s for t in self.trials], dtype=np.float64)
        known = step_s[~np.isnan(step_s)]
        usual = float(np.median(known)) if known.size else 1.0
        length: Floats = np.where(np.isnan(step_s), usual, step_s) * self.total_steps
        return length

    @cached_property
    def best(self) -> Floats:
        """The best value that each training has reported, shape (N,); infinity where it reported none."""
        return np.array([t.values.min() if t.values.size else np.inf for t in self.trials], dtype=np.float64)


class SweepAction(StrEnum):
    """The action for a training."""

    RUN = "run"  # it should hold GPUs, as far as there are any, in the decision's order
    PAUSE = "pause"  # it should not hold GPUs now; if it runs, it leaves
    STOP = "stop"  # it should end for good


class Verdict(Struct, frozen=True):
    """The action for one training, with its reason.

    `worth` compares trainings of different sweeps of one user: the larger goes first. Within a sweep the order of the
    decision counts.
    """

    trial_id: int
    action: SweepAction
    worth: float
    reason: str


class SweepDecision(Struct, frozen=True):
    """Verdicts on all trainings that have not ended: first those that should run, best first.

    `done`: why the sweep is complete and nothing should run any more; empty while it is not.
    """

    verdicts: tuple[Verdict, ...]
    done: str | None = None

    @property
    def wanted(self) -> tuple[int, ...]:
        """Ids of the trainings that should run, best first."""
        return tuple(verdict.trial_id for verdict in self.verdicts if verdict.action is SweepAction.RUN)

    @property
    def stopped(self) -> tuple[int, ...]:
        """Ids of the trainings that should end for good."""
        return tuple(verdict.trial_id for verdict in self.verdicts if verdict.action is SweepAction.STOP)


class Strategy(Protocol):
    """Decides about one sweep. A pure function: the same sweep and number of GPUs give the same decision."""

    @property
    def name(self) -> str:
        """Its name in configuration files and on command lines."""
        ...

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """The decision about each training while the sweep has `gpus` GPUs."""
        ...


_Value = TypeVar("_Value")


class Cache(Generic[_Value]):
    """One value for each key, valid while the state that it was made from is unchanged."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[object, _Value]] = {}

    def recall(self, key: Hashable, state: object, make: Callable[[], _Value]) -> _Value:
        """The value of `key` in this state, which must include everything that `make` uses."""
        kept = self._kept.get(key)
        if kept is None or kept[0] != state:
            kept = self._kept[key] = state, make()
        return kept[1]

    def forget_all_but(self, in_use: Iterable[Hashable]) -> None:
        """Drop the values of all other keys."""
        keys = set(in_use)
        self._kept = {key: entry for key, entry in self._kept.items() if key in keys}


_DIVERGED = 3  # reports in a row; after fewer a training may recover


def oriented(points: Iterable[ProgressPoint], direction: Direction) -> tuple[Floats, Floats]:
    """Increasing steps, and values (lower is better). Skips points that go back in steps.

    NaN and infinite values count as the worst until a finite one follows, then not at all. After `_DIVERGED` of them in
    a row the training has diverged: all its values count as the worst, so that it ranks last.
    """
    table = np.array([(point.step, point.value) for point in points], dtype=np.float64).reshape(-1, 2)
    table[:, 1] *= 1.0 if direction is Direction.MIN else -1.0
    finite = np.isfinite(table[:, 1])
    table[~finite, 1] = LARGEST_VALUE
    unfollowed = ~np.logical_or.accumulate(finite[::-1])[::-1]
    table = table[finite | unfollowed]
    highest = np.maximum.accumulate(np.concatenate([[-np.inf], table[:, 0]]))
    rises = table[:, 0] > highest[:-1]
    values = np.clip(table[rises, 1], -LARGEST_VALUE, LARGEST_VALUE)
    if unfollowed.sum() >= _DIVERGED:
        values[:] = LARGEST_VALUE
    return table[rises, 0], values
