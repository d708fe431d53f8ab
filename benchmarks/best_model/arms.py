"""What ours is compared with: Slurm alone, ASHA that owns its GPUs, two ASHAs that are never idle, and an oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from benchmarks.best_model.drawn import DrawnSweep
from benchmarks.best_model.small_cluster import Moves
from sched_policy.sweep.trials import Strategy, Sweep, SweepAction, SweepDecision, TrialState, Verdict
from simulation.strategies import Asha

_HOLDS = (TrialState.RUNNING, TrialState.LEAVING)


class SlurmAlone:
    """First in, first out; the sweeps' trainings in turn, because fair share holds between their owners."""

    def moves(self, sweeps: Sequence[Sweep], used_gpu_s: Sequence[float], gpus: int) -> Moves:
        """Start whoever is next."""
        del used_gpu_s
        free = gpus - sum(t.state in _HOLDS for sweep in sweeps for t in sweep.trials)
        queue = sorted((t.trial_id, k) for k, sweep in enumerate(sweeps) for t in sweep.trials if t.waits)
        return Moves(starts=[(k, row) for row, k in queue[:free]])


class Oracle:
    """Runs the training that reaches the best first, alone, from second 0."""

    def __init__(self, drawn: Sequence[DrawnSweep]) -> None:
        self._chosen = []
        for sweep in drawn:
            good = [np.flatnonzero(curve.values <= sweep.good_enough) for curve in sweep.curves]
            times_s = [c.times_s[g[0]] if g.size else np.inf for c, g in zip(sweep.curves, good, strict=True)]
            self._chosen.append(int(np.argmin(times_s)))

    def moves(self, sweeps: Sequence[Sweep], used_gpu_s: Sequence[float], gpus: int) -> Moves:
        """Start the chosen one of each sweep."""
        del used_gpu_s, gpus
        return Moves(starts=[(k, row) for k, row in enumerate(self._chosen) if sweeps[k].trials[row].waits])


class Partitioned:
    """Each sweep owns an equal part of the GPUs, and a strategy decides about it."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def moves(self, sweeps: Sequence[Sweep], used_gpu_s: Sequence[float], gpus: int) -> Moves:
        """Carry out each sweep's decision on its own GPUs."""
        del used_gpu_s
        starts, pauses, stops = [], [], []
        for k, sweep in enumerate(sweeps):
            own = gpus // len(sweeps) + (k < gpus % len(sweeps))
            one = within(sweep, self._strategy.decide(sweep, own), own)
            starts += [(k, row) for row in one.starts]
            pauses += [(k, row) for row in one.pauses]
            stops += [(k, row) for row in one.stops]
        return Moves(starts, pauses, stops)


class Own(Struct, frozen=True):
    """Moves of one sweep."""

    starts: list[int]
    pauses: list[int]
    stops: list[int]


def within(sweep: Sweep, decision: SweepDecision, gpus: int) -> Own:
    """What a decision means for a sweep that has so many GPUs, one per training."""
    stopped = set(decision.stopped)
    by_id = {t.trial_id: t for t in sweep.trials}
    held = sum(t.state in _HOLDS for t in sweep.trials) - sum(by_id[i].is_running for i in stopped)
    target = list(decision.wanted)[:gpus]
    starts = [i for i in target if by_id[i].waits][: max(0, gpus - held)]
    pauses = [
        t.trial_id for t in sweep.trials if t.is_running and t.trial_id not in target and t.trial_id not in stopped
    ]
    return Own(starts, pauses, list(stopped))


class NeverIdle(Struct, frozen=True):
    """ASHA that promotes the best waiting training where its rule promotes nobody."""

    asha: Asha = Asha()

    @property
    def name(self) -> str:
        """Its name."""
        return "never idle"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """ASHA's decision, filled up."""
        decision = self.asha.decide(sweep, gpus)
        return filled(sweep, decision, gpus, self.asha)


def filled(sweep: Sweep, decision: SweepDecision, gpus: int, asha: Asha) -> SweepDecision:
    """Run the best paused trainings of the highest rungs on the GPUs that would be idle."""
    wanted = set(decision.wanted)
    lacking = gpus - len(wanted)
    if lacking <= 0:
        return decision
    reached = asha.rungs.values(sweep)
    highest = np.isfinite(reached).sum(axis=1) - 1
    able = [i for i, t in enumerate(sweep.trials) if not t.has_ended and t.trial_id not in wanted and highest[i] >= 0]
    # Whoever runs already stays: swapping would cost a restart.
    able.sort(key=lambda i: (not sweep.trials[i].is_running, -highest[i], reached[i, highest[i]]))
    more = {sweep.trials[i].trial_id for i in able[:lacking]}
    extra = tuple(Verdict(i, SweepAction.RUN, 0.0, "the GPU would be idle") for i in sorted(more))
    rest = tuple(v for v in decision.verdicts if v.trial_id not in more)
    waiting = (Verdict(v.trial_id, SweepAction.PAUSE, 0.0, v.reason) for v in rest if v.action is not SweepAction.RUN)
    return SweepDecision((*(v for v in rest if v.action is SweepAction.RUN), *extra, *waiting))


class Finishing(Struct, frozen=True):
    """Never idle, and every third GPU runs the present leader to its end."""

    asha: Asha = Asha()

    @property
    def name(self) -> str:
        """Its name."""
        return "never idle, finishing"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """The leaders that have not ended come first, on a third of the GPUs."""
        decision = filled(sweep, self.asha.decide(sweep, gpus), gpus, self.asha)
        able = [i for i, t in enumerate(sweep.trials) if not t.has_ended and t.steps.size]
        able.sort(key=lambda i: (not (sweep.trials[i].is_running), sweep.best[i]))
        leaders = sorted(able, key=lambda i: sweep.best[i])[: max(1, gpus // 3)]
        chosen = {sweep.trials[i].trial_id for i in leaders}
        first = tuple(Verdict(i, SweepAction.RUN, 0.0, "leads") for i in sorted(chosen))
        return SweepDecision((*first, *(v for v in decision.verdicts if v.trial_id not in chosen)))
