"""The sweeps: their configurations and their data.

`coarse` is the demo's: learning rates a decade apart, as one begins a search when nothing is known; some are hopeless.
`fine` is a second look around the good ones, where all configurations learn something: there is less to gain.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STEPS = 96
STEP_S = 0.7

LEARNING_RATES: Mapping[str, tuple[float, ...]] = {
    "coarse": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
    "fine": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """Hyper-parameters of one training."""

    lr: float
    width: int
    depth: int
    seed: int

    def arguments(self) -> list[str]:
        """Options of train.py."""
        pairs = {"lr": self.lr, "width": self.width, "depth": self.depth, "seed": self.seed}
        return [f"--{key}={value}" for key, value in pairs.items()]


def configurations(sweep: str, seed: int) -> list[Configuration]:
    """24 configurations of the named sweep, in an order that depends on the seed alone."""
    grid = itertools.product(LEARNING_RATES[sweep], (16, 64), (1, 2))
    found = [Configuration(lr, width, depth, seed) for lr, width, depth in grid]
    random.Random(seed).shuffle(found)  # noqa: S311  an order, not a secret
    return found


def save_digits(path: Path, seed: int) -> None:
    """Write scikit-learn's handwritten digits, split into training and validation, once for all trainings."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(images))
    train, valid = order[:1437], order[1437:]
    np.savez(path, train_x=images[train], train_y=labels[train], valid_x=images[valid], valid_y=labels[valid])
