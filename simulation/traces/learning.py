"""Learning curves: those recorded from real trainings, the file that keeps them, and the curve of a simulated job.

And what they tell of a policy: how soon it led each sweep to its best model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from zipfile import BadZipFile

import numpy as np

from explsched.atomic_file import replacing
from explsched.errors import ExplschedError
from sched_policy.model import Exploration, ProgressPoint
from sched_policy.plan import Plan
from sched_policy.policy import SchedulingPolicy
from sched_policy.snapshot import Floats, Snapshot

if TYPE_CHECKING:
    from simulation.traces.trace import TraceJob


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

    def loss_after(self, share: float) -> float:
        """The newest loss after this share of the planned epochs, 0 to 1."""
        epoch = int(share * self.training.epochs * (1 + 1e-12))
        return float(self.losses[min(max(epoch, 0), len(self.losses) - 1)])


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


Points = tuple[ProgressPoint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Learning:
    """The learning curve of one job of a trace. Lower is better.

    Times are the job's own: seconds of training alone on its GPUs, all runs together, restarts not counted.

    Attributes:
        losses: loss before the first epoch and after each one, shape (E + 1,); it ends early where training diverged,
            and nothing is reported from there on.
        epochs: epochs planned.
        epoch_s: seconds of an epoch.
        best_of_sweep: the lowest loss that any job of its sweep reaches when it runs to its end.
        exploration: the exploration options of the job.
        abandoned_at_s: when the owner gives the job up, None if he lets it finish.

    """

    losses: Floats
    epochs: int
    epoch_s: float
    best_of_sweep: float
    exploration: Exploration
    abandoned_at_s: float | None = None
    _newest: dict[int, tuple[int, Points]] = field(default_factory=dict, init=False, repr=False)

    def points_until(self, executed_s: float, gpus: int) -> Points:
        """Reports so far of a job that has trained for `executed_s` on `gpus` GPUs, the one of epoch 0 first.

        The same tuple, not merely an equal one, until the next epoch is through, so that callers can cache by identity.
        """
        count = min(self._epoch(executed_s), len(self.losses) - 1) + 1
        known, points = self._newest.get(gpus, (0, ()))
        if known != count:
            step_gpu_s = self.epoch_s * gpus
            fresh = (ProgressPoint(i, i * step_gpu_s, float(self.losses[i])) for i in range(known, count))
            points = (*points, *fresh) if known < count else points[:count]
            self._newest[gpus] = count, points
        return points

    def gain(self, executed_s: float) -> float:
        """Normalised loss reduction, 0 to 1: (first - best so far) / (first - best of the sweep)."""
        first = float(self.losses[0])
        possible = first - self.best_of_sweep
        if possible <= 0:
            return 0.0
        reached = first - float(np.min(self.losses[: self._epoch(executed_s) + 1]))
        return min(1.0, reached / possible)

    def _epoch(self, executed_s: float) -> int:
        """Epochs finished. An epoch short of its end by rounding counts as finished."""
        return max(0, int(executed_s / self.epoch_s + 1e-6))


TOLERANCE = 0.01
"""A model counts as the sweep's best if it is worse than that by this part of it at most."""


@dataclass(frozen=True, slots=True)
class SweepReached:
    """How soon a policy led one sweep to its best. Times from the sweep's first submission.

    Attributes:
        best_s: when a report was within 1 % of the best that any training of the sweep reports; None if none was.
        best_gpu_s: GPU-seconds that the sweep had held by then.
        regret_area: mean normalised regret over the GPU-seconds that all trainings need without interruption, 0 to 1.
            Regret is how far the best report so far is from the best of all, as a share of how far the median first
            report is; 1 before the first report.

    """

    best_s: float | None
    best_gpu_s: float | None
    regret_area: float


class _Sweep:
    """One sweep of one user, while a policy is watched."""

    def __init__(self, jobs: Sequence[tuple[TraceJob, Learning]]) -> None:
        self.submit_s = min(job.submit_s for job, _ in jobs)
        self.work_gpu_s = sum(job.gpus * job.run_s for job, _ in jobs)
        self.best = min(learning.best_of_sweep for _, learning in jobs)
        self.first = float(np.median([learning.losses[0] for _, learning in jobs]))
        self.better: list[tuple[float, float, float]] = []
        """(time, GPU-seconds held, value) of each report that was the best so far."""

    def note(self, now_s: float, held_gpu_s: float, value: float) -> None:
        if not self.better or value < self.better[-1][2]:
            self.better.append((now_s, held_gpu_s, value))

    def reached(self) -> SweepReached:
        goal = self.best + TOLERANCE * abs(self.best)
        when = next(((at_s, gpu_s) for at_s, gpu_s, value in self.better if value <= goal), None)
        scale = max(self.first - self.best, 1e-12 * max(1.0, abs(self.best)))
        area, at_gpu_s, regret = 0.0, 0.0, 1.0
        for _, gpu_s, value in (*self.better, (math.inf, math.inf, math.inf)):
            until = min(gpu_s, self.work_gpu_s)
            area += regret * max(0.0, until - at_gpu_s)
            at_gpu_s = max(at_gpu_s, until)
            regret = min(regret, max(0.0, (value - self.best) / scale))
        best_s, best_gpu_s = (when[0] - self.submit_s, when[1]) if when else (None, None)
        return SweepReached(best_s, best_gpu_s, area / self.work_gpu_s)


class WatchedSweeps:
    """A policy, and when it saw each sweep of a trace become better: up to one pass after the report."""

    def __init__(self, policy: SchedulingPolicy, jobs: Iterable[TraceJob]) -> None:
        """`jobs` are those of the trace; those without learning curves or sweep are not watched."""
        self._policy = policy
        self.name, self.summary, self.needs_durations = policy.name, policy.summary, policy.needs_durations
        members: dict[tuple[str, str], list[tuple[TraceJob, Learning]]] = {}
        for job in jobs:
            if job.learning is not None and job.learning.exploration.sweep is not None:
                members.setdefault((job.user, job.learning.exploration.sweep), []).append((job, job.learning))
        self._sweeps = {key: _Sweep(own) for key, own in members.items()}
        self._of_job = {job.job_id: (key, learning) for key, own in members.items() for job, learning in own}
        self._seen: dict[int, tuple[int, float]] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan, after a look at the reports."""
        held_gpu_s = dict.fromkeys(self._sweeps, 0.0)
        values: dict[tuple[str, str], float] = {}
        for job in (*snapshot.jobs, *snapshot.ended) if self._sweeps else ():
            if job.job_id in self._of_job:
                key, _ = self._of_job[job.job_id]
                count, best = self._seen.get(job.job_id, (0, math.inf))
                best = min((best, *(point.value for point in job.points[count:])))
                self._seen[job.job_id] = len(job.points), best
                held_gpu_s[key] += job.executed_s(snapshot.now_s) * job.request.total
                values[key] = min(best, values.get(key, math.inf))
        for key, value in values.items():
            if value < math.inf:
                self._sweeps[key].note(snapshot.now_s, held_gpu_s[key], value)
        return self._policy.plan(snapshot)

    def reached(self, ends: Iterable[tuple[int, float, float, bool]]) -> tuple[SweepReached, ...]:
        """What became of each sweep, by user and name.

        `ends` are all jobs: id, end in seconds, the GPU-seconds that they held, whether they came to their end. The
        policy does not look again after the last report of a sweep.
        """
        held_gpu_s, last = dict.fromkeys(self._sweeps, 0.0), dict.fromkeys(self._sweeps, (0.0, math.inf))
        for job_id, end_s, gpu_s, is_complete in ends:
            if job_id in self._of_job:
                key, learning = self._of_job[job_id]
                held_gpu_s[key] += gpu_s
                if is_complete:
                    last[key] = max(end_s, last[key][0]), min(float(np.min(learning.losses)), last[key][1])
        for key, (end_s, value) in last.items():
            if value < math.inf:
                self._sweeps[key].note(end_s, held_gpu_s[key], value)
        return tuple(self._sweeps[key].reached() for key in sorted(self._sweeps))
