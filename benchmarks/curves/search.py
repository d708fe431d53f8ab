"""Which trainings are recorded: a random search over hyper-parameters for each data set and model family."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from benchmarks.exploratory.recorded import Training


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched on one data set with one model family; every value is drawn evenly."""

    data: str
    model: str
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    batches: tuple[int, ...]


SPACES = (
    Space("digits", "mlp", (16, 64, 256), (0, 1, 2, 3), (32, 64, 128)),
    Space("digits", "resmlp", (32, 64), (1, 2, 4), (64, 128)),
    Space("digits", "autoencoder", (32, 128), (1, 2), (32, 64, 128)),
    Space("digits", "cnn", (4, 8), (1, 2), (64, 128)),
    Space("digits", "gru", (16, 32), (1,), (128,)),
    Space("wine", "mlp", (8, 32, 128), (0, 1, 2), (8, 16, 32)),
    Space("breast_cancer", "mlp", (8, 32, 128), (0, 1, 2), (16, 32, 64)),
    Space("breast_cancer", "resmlp", (16, 64), (1, 2, 4), (16, 32, 64)),
    Space("iris", "mlp", (8, 32, 128), (0, 1, 2), (8, 16, 32)),
    Space("diabetes", "mlp", (8, 32, 128), (0, 1, 2), (16, 32, 64)),
)
SEEDS = (1, 2)
_EPOCHS = (40, 60, 80, 100, 150, 200)
_OPTIMISERS = ("sgd", "momentum", "adamw", "rmsprop")
_LOG10_LR = (-5.0, 1.0)  # when nothing is known: some of these are hopelessly slow, some diverge
_WEIGHT_DECAYS = (0.0, 1e-4, 1e-2)
_DROPOUTS = (0.0, 0.0, 0.2, 0.5)


def trainings(per_space: int) -> list[Training]:
    """`per_space` configurations of every space, each with all `SEEDS`. The same ones every time."""
    found = []
    for space in SPACES:
        draw = random.Random(f"{space.data} {space.model}")  # noqa: S311  a search, not a secret
        for _ in range(per_space):
            width, depth, batch = draw.choice(space.widths), draw.choice(space.depths), draw.choice(space.batches)
            optimiser, epochs = draw.choice(_OPTIMISERS), draw.choice(_EPOCHS)
            lr = _two_digits(10 ** draw.uniform(*_LOG10_LR))
            decay, dropout = draw.choice(_WEIGHT_DECAYS), draw.choice(_DROPOUTS)
            found += [
                Training(space.data, space.model, width, depth, optimiser, lr, decay, dropout, batch, epochs, seed)
                for seed in SEEDS
            ]
    return found


def _two_digits(value: float) -> float:
    return round(value, 1 - math.floor(math.log10(value)))
