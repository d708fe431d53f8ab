"""Learning curves that were recorded from real trainings (`benchmarks.curves`), and the file that keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, overload
from zipfile import BadZipFile

import numpy as np

from explsched.atomic_file import replacing
from explsched.errors import ExplschedError
from sched_policy.snapshot import Floats


class CurveError(ExplschedError):
    """A file that holds no learning curves, or not in the form that is documented at `LearningCurves.save`."""


@dataclass(frozen=True, slots=True)
class Training:
    """What was trained: the configuration of one recorded training.

    Attributes:
        data: name of the data set.
        model: name of the model family.
        width: units of a hidden layer (channels of a convolution).
        depth: hidden layers.
        optimiser: name of the optimiser.
        lr: learning rate.
        weight_decay: its weight decay.
        dropout: probability of dropping a hidden unit.
        batch: samples per step.
        epochs: passes over the training data that were planned.
        seed: of initialisation and batches.

    """

    data: str
    model: str
    width: int
    depth: int
    optimiser: str
    lr: float
    weight_decay: float
    dropout: float
    batch: int
    epochs: int
    seed: int

    @property
    def sweep(self) -> tuple[str, str]:
        """Trainings of one data set and model family compare: they could be one hyper-parameter search."""
        return self.data, self.model


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCurve:
    """A training and its validation loss.

    Attributes:
        training: the configuration.
        losses: the loss before the first epoch and after each one, shape (E + 1,). E is less than the epochs planned
            where the training diverged: the loss after the next epoch was not a finite number.

    """

    training: Training
    losses: Floats

    @property
    def diverged(self) -> bool:
        """Whether the curve ends before its training was to end."""
        return len(self.losses) <= self.training.epochs


class LearningCurves(Sequence[RecordedCurve]):
    """The curves of one file, in its order."""

    def __init__(self, curves: Iterable[RecordedCurve]) -> None:
        self._curves = tuple(curves)

    @classmethod
    def load(cls, path: Path) -> LearningCurves:
        """Read what `save` wrote. Raises `CurveError` with the file's name and what it lacks."""
        try:
            with np.load(path, allow_pickle=False) as file:
                stored = {name: file[name] for name in file.files}
        except (OSError, ValueError, BadZipFile, EOFError) as error:
            raise CurveError(f"{path}: cannot be read as learning curves: {error}") from error
        names = tuple(field.name for field in fields(Training))
        missing = sorted({*names, "losses", "length"} - stored.keys())
        if missing:
            raise CurveError(f"{path}: lacks the arrays {', '.join(missing)}")
        count, total = len(stored["length"]), len(stored["losses"])
        if any(len(stored[name]) != count for name in names) or stored["length"].sum() != total:
            raise CurveError(f"{path}: its arrays do not fit together ({count} curves, {total} losses)")
        ends = np.cumsum(stored["length"])
        losses = stored["losses"].astype(np.float64)
        rows = zip(*(stored[name].tolist() for name in names), strict=True)
        return cls(
            RecordedCurve(Training(*row), losses[end - length : end])
            for row, end, length in zip(rows, ends.tolist(), stored["length"].tolist(), strict=True)
        )

    def save(self, path: Path) -> None:
        """Write a compressed `.npz` at once or not at all.

        One array per field of `Training`, shape (C,); `length`, shape (C,): losses of each curve; `losses`: all of
        them, one curve after the other, float32.
        """
        columns = zip(*(astuple(curve.training) for curve in self._curves), strict=True)
        names = (field.name for field in fields(Training))
        arrays: dict[str, Any] = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
        with replacing(path) as file:
            np.savez_compressed(
                file,
                length=np.array([len(curve.losses) for curve in self._curves], dtype=np.int32),
                losses=np.concatenate([curve.losses for curve in self._curves]).astype(np.float32),
                **arrays,
            )

    def __len__(self) -> int:
        return len(self._curves)

    @overload
    def __getitem__(self, index: int) -> RecordedCurve: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RecordedCurve, ...]: ...
    def __getitem__(self, index: int | slice) -> RecordedCurve | tuple[RecordedCurve, ...]:
        return self._curves[index]

    def __iter__(self) -> Iterator[RecordedCurve]:
        return iter(self._curves)
