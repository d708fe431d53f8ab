"""Hyperband (Li et al., JMLR 2018), asynchronous: brackets of ASHA that differ in their lowest rung.

Trainings are dealt to the brackets in turn, by their number in the sweep, in proportion to the trainings that Hyperband
starts in each: with s_max = floor(log_eta 1/min_resource), bracket s starts ceil((s_max + 1) / (s + 1) * eta^s) of them
at the share eta^-s of their length.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from sched_policy.sweep.asha import Asha, Rungs
from sched_policy.sweep.decision import SweepAction, SweepDecision
from sched_policy.sweep.trials import Sweep


class Hyperband(Struct, frozen=True):
    """Asynchronous Hyperband over a fixed list of trainings."""

    rungs: Rungs = Rungs()

    @property
    def name(self) -> str:
        """Its name."""
        return "hyperband"

    def sizes(self) -> tuple[int, ...]:
        """Trainings that each bracket starts, the one with the lowest first rung first."""
        eta = self.rungs.eta
        most = max(0, math.floor(math.log(1 / self.rungs.min_resource, eta) + 1e-9))
        return tuple(math.ceil((most + 1) / (s + 1) * eta**s) for s in range(most, -1, -1))

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Each bracket's decision, promotions of all brackets before their new trainings."""
        sizes = self.sizes()
        bracket_of = [bracket for bracket, size in enumerate(sizes) for _ in range(size)]
        parts = []
        for bracket in range(len(sizes)):
            own = tuple(t for n, t in enumerate(sweep.trials) if bracket_of[n % len(bracket_of)] == bracket)
            lowest = replace(self.rungs, min_resource=self.rungs.min_resource * self.rungs.eta**bracket)
            parts.append(Asha(lowest).decide(Sweep(own, sweep.restart_s, sweep.checkpoint_s), gpus))
        verdicts = sorted((v for part in parts for v in part.verdicts), key=lambda v: -v.worth)
        runs = (v for v in verdicts if v.action is SweepAction.RUN)
        return SweepDecision((*runs, *(v for v in verdicts if v.action is not SweepAction.RUN)))
