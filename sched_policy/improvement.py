"""By how much jobs may still improve, whatever the quantum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from sched_policy.curves import CurveTable, LearningCurve, Vector, fit_all
from sched_policy.model import LARGEST_VALUE, Direction, Job, ProgressPoint
from sched_policy.snapshot import Bools, Floats, Ints, Latest

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

    def __call__(self, wanted: Iterable[tuple[Points, Direction]]) -> list[Reported]:
        """What the reports of many jobs say, each given with the direction in which its metric improves.

        Fits only what has not been seen in the call before: pass a job's tuple on as it is while nothing is added.
        """
        keyed = [((id(points), direction), points) if points else None for points, direction in wanted]
        some = [entry for entry in keyed if entry is not None]
        kept = self._kept
        missing = {key: points for key, points in some if key not in kept}
        fresh = _read([(points, direction) for (_, direction), points in missing.items()])
        added = {key: (points, made) for (key, points), made in zip(missing.items(), fresh, strict=True)}
        keep = {key: kept[key] if key in kept else added[key] for key, _ in some}
        self._kept = keep
        return [_NOTHING if entry is None else keep[entry[0]][1] for entry in keyed]


reported = _Memory()


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
    return x[finite], np.clip(y[finite], -LARGEST_VALUE, LARGEST_VALUE)


class RemainingImprovement(Struct, frozen=True, eq=False, dict=True):
    """What jobs that report, or are in a sweep, may still learn, whatever the quantum. All arrays have shape (E,).

    Attributes:
        rows: positions of those jobs among all that were given.
        job_id: their ids.
        gpus: their gangs.
        sweep: the number of each job's sweep; jobs of one sweep have metrics that compare.
        measured: whether the job has reported enough for a curve.
        scale: the largest improvement that any job of the sweep has shown, 1 if none has.
        best: the job's best metric value so far, lower is better; not a number where not measured.
        spent_gpu_s: GPU-seconds at its last report.
        horizon_gpu_s: GPU-seconds from there to the job's last step; as many again where it did not say.
        remaining: expected improvement until then, as a share of the scale; 1 where not measured.
        remaining_std: its standard deviation.
        curves: the fitted curves of the measured jobs.

    """

    rows: Ints
    job_id: Ints
    gpus: Ints
    sweep: Ints
    measured: Bools
    scale: Floats
    best: Floats
    spent_gpu_s: Floats
    horizon_gpu_s: Floats
    remaining: Floats
    remaining_std: Floats
    curves: CurveTable

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> RemainingImprovement:
        """Of these jobs. Those left out are in no sweep and have not reported: nothing can be said of them."""
        taking_part = [
            (row, job, told)
            for row, job in enumerate(jobs)
            if (told := job.exploration) is not None and (told.sweep is not None or job.points)
        ]
        said = reported([(job.points, exploration.direction) for _, job, exploration in taking_part])
        numbers: dict[tuple[str, str | int, str], int] = {}
        # Metrics compare among jobs of the same user, sweep and metric.
        keys = [(job.user, told.sweep or job.job_id, told.metric) for _, job, told in taking_part]
        sweep = _ints([numbers.setdefault(key, len(numbers)) for key in keys])
        # Most jobs of a long queue have not reported anything yet: what follows is about the others.
        heard = [i for i, one in enumerate(said) if one.best is not None]
        shown = np.zeros(len(numbers))
        np.maximum.at(shown, sweep[heard], [said[i].shown for i in heard])
        scale = np.where(shown > 0, np.maximum(shown, 1.0 / LARGEST_VALUE), 1.0)[sweep]

        measured = np.zeros(len(said), dtype=np.bool_)
        measured[heard] = [said[i].curve is not None for i in heard]
        fitted = tuple(curve for i in heard if (curve := said[i].curve) is not None)
        curves = _TABLE.recall(fitted, lambda: CurveTable(fitted))
        best, spent_gpu_s, horizon_gpu_s = np.full(len(said), np.nan), np.zeros(len(said)), np.zeros(len(said))
        best[heard] = [np.nan if said[i].curve is None else said[i].best for i in heard]
        spent_gpu_s[heard] = [said[i].spent_gpu_s for i in heard]
        left_gpu_s = ((i, taking_part[i][1].left_gpu_s) for i in heard)
        horizon_gpu_s[heard] = [said[i].spent_gpu_s if left is None else left for i, left in left_gpu_s]
        mean, std = curves.improvement(spent_gpu_s[measured], (spent_gpu_s + horizon_gpu_s)[measured])
        remaining, remaining_std = np.ones(len(said)), np.ones(len(said))
        remaining[measured], remaining_std[measured] = mean / scale[measured], std / scale[measured]
        return cls(
            rows=_ints([row for row, _, _ in taking_part]),
            job_id=_ints([job.job_id for _, job, _ in taking_part]),
            gpus=_ints([job.request.total for _, job, _ in taking_part]),
            sweep=sweep,
            measured=measured,
            scale=scale,
            best=best,
            spent_gpu_s=spent_gpu_s,
            horizon_gpu_s=horizon_gpu_s,
            remaining=remaining,
            remaining_std=remaining_std,
            curves=curves,
        )


_LATEST: Latest[RemainingImprovement] = Latest()
_TABLE: Latest[CurveTable] = Latest()  # most jobs have not reported anew since the last snapshot


def remaining_improvement(jobs: tuple[Job, ...]) -> RemainingImprovement:
    """What these jobs may still improve. Order, early stop and display of one snapshot share one computation."""
    return _LATEST.recall((jobs,), lambda: RemainingImprovement.of(jobs))


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
