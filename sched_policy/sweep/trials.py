"""One sweep as its strategy sees it, and what the strategy answers, each entry with a reason that a person can read.

A sweep is its trainings, what they reported, and what moving them costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Protocol

import numpy as np
from msgspec import Struct

from sched_policy.model import Direction, ProgressPoint
from sched_policy.model import Parameter as Parameter
from sched_policy.snapshot import Bools, Floats


class TrialState(StrEnum):
    """Where a training stands."""

    WAITING = "waiting"  # it never ran
    PAUSED = "paused"  # it ran, and waits for GPUs again
    RUNNING = "running"
    LEAVING = "leaving"  # it saves its checkpoint, and still holds its GPUs
    ENDED = "ended"  # it is through, failed, or was stopped for good


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One training of a sweep.

    Attributes:
        trial_id: its id, unique in the sweep. Ties break by it.
        state: where it stands.
        steps: the steps at which it reported, rising, shape (R,).
        values: what it reported there, oriented so that lower is better, shape (R,); finite numbers only.
        total_steps: the steps that it will run, None if it did not say.
        params: its hyper-parameters; empty if unknown.
        gpus: GPUs of its gang.
        step_s: run time of a step in seconds, None while nothing is known of it.
        may_stop: whether it consented to be stopped for good.
        settled: false while its present run is too young to be paused: the restart has to pay for itself.
        granted_step: the step of its last report when it was last let run on, as a job has it.

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
    settled: bool = True
    granted_step: float = float("inf")

    @property
    def is_running(self) -> bool:
        """Whether it makes progress now."""
        return self.state is TrialState.RUNNING

    @property
    def waits(self) -> bool:
        """Whether it could be given GPUs now."""
        return self.state in (TrialState.WAITING, TrialState.PAUSED)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state is TrialState.ENDED


@dataclass(frozen=True)
class Sweep:
    """The trainings of one sweep at one moment, in order of their ids.

    Attributes:
        trials: all of them, those that ended too: they tell what late values can be expected from early ones.
        restart_s: what it costs to start a paused training again, in seconds of its GPUs.
        checkpoint_s: what it costs to pause one, in seconds of its GPUs.

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
        """Of which trainings nothing more will come, shape (N,)."""
        return np.array([trial.has_ended for trial in self.trials], dtype=np.bool_)

    @cached_property
    def runs(self) -> Bools:
        """Which trainings make progress now, shape (N,)."""
        return np.array([trial.is_running for trial in self.trials], dtype=np.bool_)

    @cached_property
    def moving_s(self) -> Floats:
        """What giving each training GPUs costs that it does not hold, in seconds of its time, shape (N,)."""
        return np.where(self.runs, 0.0, self.restart_s + self.checkpoint_s)

    @cached_property
    def reached(self) -> Floats:
        """The step of each training's last report, 0 without any, shape (N,)."""
        return np.array([t.steps[-1] if t.steps.size else 0.0 for t in self.trials], dtype=np.float64)

    @cached_property
    def total_steps(self) -> Floats:
        """Steps of each training, shape (N,); the most that is known of any where one did not say."""
        said = np.array([np.nan if t.total_steps is None else t.total_steps for t in self.trials], dtype=np.float64)
        known = np.concatenate([said[~np.isnan(said)], self.reached, [1.0]])
        total: Floats = np.maximum(np.where(np.isnan(said), known.max(), said), self.reached)
        return np.maximum(total, 1e-9)

    @cached_property
    def progress(self) -> Floats:
        """How far each training has come by its last report, as a share of its steps, shape (N,)."""
        return np.minimum(1.0, self.reached / self.total_steps)

    @cached_property
    def length_s(self) -> Floats:
        """Run time of each training from its first step to its last, shape (N,).

        Where the time of a step is not known yet, the median of the others' stands for it; without any, 1 s.
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
    """What should become of a training."""

    RUN = "run"  # it should hold GPUs, in the decision's order, as far as there are any
    PAUSE = "pause"  # it should not hold GPUs now; who runs makes room
    STOP = "stop"  # it should end for good


class Verdict(Struct, frozen=True):
    """What should become of one training, and why.

    `worth` compares trainings of different sweeps of one user: larger runs first. Within a sweep the decision's order
    counts.
    """

    trial_id: int
    action: SweepAction
    worth: float
    reason: str


class SweepDecision(Struct, frozen=True):
    """Verdicts on all trainings that have not ended, those that should run first, best first.

    `done` says that the sweep has what it will get: nothing runs any more, and why.
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
        """What should become of each training while the sweep has `gpus` GPUs."""
        ...


Points = tuple[ProgressPoint, ...]


class ReportMemory:
    """Steps and oriented values of points tuples, by their identity: a tuple never changes, so neither do these.

    Each entry holds its tuple, so that no other object can take over its id. `forget_all_but` keeps what is in use.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Direction], tuple[Points, Floats, Floats]] = {}

    def recall(self, points: Points, direction: Direction) -> tuple[Floats, Floats]:
        """Steps, rising, and values, lower is better. What is not finite, or goes back in steps, is passed over."""
        key = id(points), direction
        if key not in self._kept:
            self._kept[key] = points, *_oriented(points, direction)
        return self._kept[key][1:]

    def forget_all_but(self, in_use: Iterable[Points]) -> None:
        """Let go of reports that nobody asks about any more."""
        ids = {id(points) for points in in_use}
        self._kept = {key: entry for key, entry in self._kept.items() if key[0] in ids}


class DecisionMemory:
    """The last decision about each sweep, used again while nothing about the sweep has changed."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[object, SweepDecision]] = {}

    def recall(self, key: Hashable, state: object, decide: Callable[[], SweepDecision]) -> SweepDecision:
        """What was decided about the sweep of that key in that state, all that a decision depends on."""
        kept = self._kept.get(key)
        if kept is None or kept[0] != state:
            kept = self._kept[key] = state, decide()
        return kept[1]

    def forget_all_but(self, in_use: Iterable[Hashable]) -> None:
        """Let go of sweeps that are over."""
        keys = set(in_use)
        self._kept = {key: entry for key, entry in self._kept.items() if key in keys}


def _oriented(points: Points, direction: Direction) -> tuple[Floats, Floats]:
    sign = 1.0 if direction is Direction.MIN else -1.0
    steps: Floats = np.array([point.step for point in points], dtype=np.float64)
    values: Floats = np.array([point.value for point in points], dtype=np.float64)
    if np.isfinite(values).all() and (steps[1:] > steps[:-1]).all():  # nearly always; after a restart all are read anew
        return steps, sign * values
    table = np.array([(point.step, point.value) for point in points], dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    highest = np.maximum.accumulate(table[:, 0]) if len(table) else table[:, 0]
    rises = np.concatenate([[True], table[1:, 0] > highest[:-1]]) if len(table) else np.empty(0, dtype=np.bool_)
    return table[rises, 0], sign * table[rises, 1]
