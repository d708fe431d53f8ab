"""What a job's own reports say: its fitted curve, remembered until the job reports again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from sched_policy.curves import LearningCurve, Vector, fit_all
from sched_policy.model import Direction, ProgressPoint

Points = tuple[ProgressPoint, ...]


class Reported(Struct, frozen=True, eq=False, gc=False):
    """The reports of one job, oriented so that lower is better; not-a-number and infinity are passed over.

    Attributes:
        curve: what is fitted to them, None if they are too few.
        shown: improvement from the first report to the best one.
        largest: the largest improvement between two reports in a row.
        best: the best value, None without any.
        spent_gpu_s: the most GPU-seconds at which it reported.

    """

    curve: LearningCurve | None = None
    shown: float = 0.0
    largest: float = 0.0
    best: float | None = None
    spent_gpu_s: float = 0.0


_NOTHING = Reported()
_Key = tuple[int, Direction]


class _Memory:
    """What was made of points tuples, by their identity: a tuple never changes, so neither does what it says.

    Each entry holds its tuple, so that no other object can take over its id. Only what the latest call asked for is
    kept, hence never more than a snapshot's jobs.
    """

    def __init__(self) -> None:
        self._kept: dict[_Key, tuple[Points, Reported]] = {}

    def recall(self, wanted: Iterable[tuple[Points, Direction]]) -> list[Reported]:
        """What each of the wanted reports says, in their order."""
        keyed = [((id(points), direction), points) if points else None for points, direction in wanted]
        some = [entry for entry in keyed if entry is not None]
        kept = self._kept
        missing = {key: points for key, points in some if key not in kept}
        fresh = _read([(points, direction) for (_, direction), points in missing.items()])
        added = {key: (points, made) for (key, points), made in zip(missing.items(), fresh, strict=True)}
        keep = {key: kept[key] if key in kept else added[key] for key, _ in some}
        self._kept = keep
        return [_NOTHING if entry is None else keep[entry[0]][1] for entry in keyed]


_MEMORY = _Memory()


def reported(wanted: Iterable[tuple[Points, Direction]]) -> list[Reported]:
    """What the reports of many jobs say, each given with the direction in which its metric improves.

    Fits only what has not been seen in the call before: pass a job's tuple on as it is while nothing is added to it.
    """
    return _MEMORY.recall(wanted)


def _read(histories: list[tuple[Points, Direction]]) -> list[Reported]:
    oriented = [_oriented(points, direction) for points, direction in histories]
    curves = fit_all(oriented)
    return [
        Reported(
            curve=curve,
            shown=float(max(0.0, y[0] - y.min())),
            largest=float(np.max(y[:-1] - y[1:], initial=0.0)),
            best=float(y.min()),
            spent_gpu_s=float(x.max()),
        )
        if y.size
        else _NOTHING
        for curve, (x, y) in zip(curves, oriented, strict=True)
    ]


def _oriented(points: Points, direction: Direction) -> tuple[Vector, Vector]:
    sign = 1.0 if direction is Direction.MIN else -1.0
    x = np.array([point.gpu_s for point in points], dtype=np.float64)
    y = sign * np.array([point.value for point in points], dtype=np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite], y[finite]
