"""A small event simulator for sweeps: GPUs, one training each, and what starting and pausing cost.

For choosing a method quickly; the figures that count come from the project's own simulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from benchmarks.best_model.drawn import DrawnSweep
from sched_policy.snapshot import Floats
from sched_policy.sweep.trials import Sweep, Trial, TrialState

RESTART_S = 30.0
CHECKPOINT_S = 10.0


class Moves(Struct, frozen=True):
    """What happens now, as (sweep, training) each. Trainings that have not reported since they started do not pause."""

    starts: Sequence[tuple[int, int]] = ()
    pauses: Sequence[tuple[int, int]] = ()
    stops: Sequence[tuple[int, int]] = ()


class Arm(Protocol):
    """Decides about all sweeps of the cluster."""

    def moves(self, sweeps: Sequence[Sweep], used_gpu_s: Sequence[float], gpus: int) -> Moves:
        """What to start, pause and stop; `used_gpu_s` is what each sweep has had so far."""
        ...


class Result(Struct, frozen=True):
    """What became of one sweep; infinity where the best was not reached."""

    task: str
    reached_s: float
    reached_gpu_s: float
    all_gpu_s: float
    end_s: float


class _Trial:
    def __init__(self, drawn: DrawnSweep, row: int) -> None:
        self.curve = drawn.curves[row]
        self.row = row
        self.state = TrialState.WAITING
        self.done_s = 0.0
        self.reports = 0
        self.since_s = 0.0  # when its work of this run began to count
        self.took_s = 0.0  # when it took its GPU
        self.held_s = 0.0
        self.settled = True  # has reported in its current run: before, a pause would make its start useless
        self.version = 0
        self.shown: Trial | None = None

    def show(self) -> Trial:
        if self.shown is None:
            n = self.reports
            self.shown = Trial(
                self.row,
                self.state,
                self.curve.times_s[:n],
                self.curve.values[:n],
                self.curve.planned_s,
                self.curve.params,
                step_s=1.0,
            )
        return self.shown


class SmallCluster:
    """Runs sweeps that are all submitted at second 0."""

    def __init__(
        self, drawn: Sequence[DrawnSweep], gpus: int, tick_s: float = 0.0, *, to_the_best_only: bool = False
    ) -> None:
        self._drawn = drawn
        self._to_the_best_only = to_the_best_only
        self._gpus = gpus
        self._tick_s = tick_s
        self._trials = [[_Trial(sweep, row) for row in range(len(sweep.curves))] for sweep in drawn]
        self._active: list[tuple[int, _Trial]] = []
        self._free = gpus
        self._now_s = 0.0
        self._reached = [(math.inf, math.inf)] * len(drawn)
        self._ended_s = [0.0] * len(drawn)

    def run(self, arm: Arm) -> list[Result]:
        """Until nothing runs and nothing is started any more."""
        while True:
            sweeps = [Sweep.of((t.show() for t in trials), RESTART_S, CHECKPOINT_S) for trials in self._trials]
            self._carry_out(arm.moves(sweeps, [self._used(k) for k in range(len(sweeps))], self._gpus))
            if not self._until_next_look():
                break
            if self._to_the_best_only and all(at_s < math.inf for at_s, _ in self._reached):
                break
        return [self._result(k) for k in range(len(self._drawn))]

    def _used(self, k: int) -> float:
        running = (TrialState.RUNNING, TrialState.LEAVING)
        return sum(t.held_s + (self._now_s - t.took_s if t.state in running else 0.0) for t in self._trials[k])

    def _result(self, k: int) -> Result:
        at_s, gpu_s = self._reached[k]
        return Result(self._drawn[k].task, at_s, gpu_s, self._used(k), self._ended_s[k])

    def _carry_out(self, moves: Moves) -> None:
        for k, row in moves.stops:
            trial = self._trials[k][row]
            self._count(trial)
            if trial.state is TrialState.RUNNING:
                self._release(k, trial)
            self._set(trial, TrialState.ENDED)
        for trial in (one for k, row in moves.pauses if (one := self._trials[k][row]).settled):
            self._count(trial)
            trial.since_s = self._now_s + CHECKPOINT_S
            self._set(trial, TrialState.LEAVING)
        for k, row in moves.starts:
            trial = self._trials[k][row]
            assert trial.state in (TrialState.WAITING, TrialState.PAUSED) and self._free > 0  # noqa: S101
            self._free -= 1
            trial.took_s = self._now_s
            trial.since_s = self._now_s + (RESTART_S if trial.state is TrialState.PAUSED else 0.0)
            trial.settled = False
            self._active.append((k, trial))
            self._set(trial, TrialState.RUNNING)

    def _set(self, trial: _Trial, state: TrialState) -> None:
        trial.state, trial.shown = state, None

    def _release(self, k: int, trial: _Trial) -> None:
        trial.held_s += self._now_s - trial.took_s
        self._free += 1
        self._ended_s[k] = self._now_s

    def _count(self, trial: _Trial) -> None:
        if trial.state is TrialState.RUNNING and self._now_s > trial.since_s:
            trial.done_s += self._now_s - trial.since_s
            trial.since_s = self._now_s

    def _until_next_look(self) -> bool:
        """Let time pass until something has changed and the next look is due; false if nothing runs."""
        due_s = math.inf
        while True:
            event_s, k, trial = self._next_event()
            if trial is None or event_s > due_s:
                if trial is None and due_s == math.inf:
                    return False
                self._now_s = due_s
                return True
            self._now_s = event_s
            self._happen(k, trial)
            if self._tick_s == 0:
                due_s = event_s
            elif due_s == math.inf:
                due_s = math.ceil(event_s / self._tick_s - 1e-9) * self._tick_s

    def _next_event(self) -> tuple[float, int, _Trial | None]:
        found: tuple[float, int, _Trial | None] = (math.inf, -1, None)
        self._active = [
            (k, trial) for k, trial in self._active if trial.state in (TrialState.RUNNING, TrialState.LEAVING)
        ]
        for k, trial in self._active:
            at_s = trial.since_s
            if trial.state is TrialState.RUNNING:
                at_s += float(trial.curve.times_s[trial.reports]) - trial.done_s
            if at_s < found[0]:
                found = (at_s, k, trial)
        return found

    def _happen(self, k: int, trial: _Trial) -> None:
        if trial.state is TrialState.LEAVING:
            self._release(k, trial)
            self._set(trial, TrialState.PAUSED)
            return
        value = float(trial.curve.values[trial.reports])
        trial.done_s = float(trial.curve.times_s[trial.reports])
        trial.since_s = self._now_s
        trial.reports += 1
        trial.settled = True
        trial.shown = None
        if value <= self._drawn[k].good_enough and self._reached[k][0] == math.inf:
            self._reached[k] = (self._now_s, self._used(k))
        if trial.reports == len(trial.curve.times_s):
            self._release(k, trial)
            self._set(trial, TrialState.ENDED)


def geometric_mean(values: Sequence[float] | Floats) -> float:
    """The geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))
