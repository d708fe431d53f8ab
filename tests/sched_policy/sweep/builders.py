"""Sweeps with synthetic curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from sched_policy.sweep.trials import Sweep, Trial, TrialState

TOTAL = 54


def curve(final: float, steps: int, exponent: float = 0.5) -> np.ndarray:
    """A power law from 1 that would be `final` at the end, as far as `steps`."""
    s = np.arange(1.0, steps + 1)
    end = float(TOTAL) ** -exponent
    return np.asarray(final + (1 - final) * (s**-exponent - end) / (1 - end))


def trial(trial_id: int, final: float = 0.5, steps: int = 0, state: TrialState | None = None, **fields: Any) -> Trial:
    """A training that has reported at each of its steps so far."""
    known = {"steps": np.arange(1.0, steps + 1), "values": curve(final, steps), "total_steps": float(TOTAL)}
    usual = TrialState.PAUSED if steps else TrialState.WAITING
    return Trial(trial_id, state or usual, **{**known, "step_s": 10.0, **fields})


def sweep(*trials: Trial) -> Sweep:
    return Sweep.of(trials)
