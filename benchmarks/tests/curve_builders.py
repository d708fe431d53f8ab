"""Learning curves for tests: exponentials, so that every number can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.exploratory.recorded import RecordedCurve, Training
from sched_policy.snapshot import Floats

TRAINING = Training("toys", "mlp", 8, 1, "sgd", 0.1, 0.0, 0.0, 16, 40, 1)


def recorded(losses: list[float] | np.ndarray, **fields: Any) -> RecordedCurve:
    """A training of as many epochs as there are losses after the first, unless told otherwise."""
    training = replace(TRAINING, **{"epochs": len(losses) - 1, **fields})
    return RecordedCurve(training, np.asarray(losses, dtype=np.float64))


def falling(best: float, rate: float, epochs: int = 40, first: float = 1.0) -> Floats:
    """A loss that falls from `first` to `best`, by the factor exp(-rate) an epoch."""
    losses: Floats = best + (first - best) * np.exp(-rate * np.arange(epochs + 1))
    return losses
