"""What a strategy answers, each entry with a reason that a person can read."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from sched_policy.sweep.trials import Sweep


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
