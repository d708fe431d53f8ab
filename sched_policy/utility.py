"""What a job is worth: expected improvement of its metric per GPU-second (ExplSched, CLUSTER 2023).

Raw improvements of different metrics do not compare, so each is divided by a scale: the largest improvement
that any member of the job's sweep has shown so far (a job outside a sweep is its own sweep). A utility is thus
"share of the sweep's known improvement per GPU-second", and a configuration that hardly learns is worth little
beside its siblings even when it moves as fast as it ever will.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sched_policy.curves import LearningCurve, fit
from sched_policy.model import Direction, Exploration, Job


@dataclass(frozen=True, slots=True)
class Utility:
    """A job's expected share of improvement per GPU-second, over the next quantum.

    `std` is its standard deviation; `remaining` is the expected improvement (same scale) until the end of the
    job as far as that is known, `remaining_std` its standard deviation; `best` is the job's best metric value
    so far, oriented so that lower is better. `measured` is false where the sweep's prior stands in.
    """

    value: float
    std: float
    remaining: float
    remaining_std: float
    best: float | None
    scale: float
    measured: bool


@dataclass(frozen=True, slots=True)
class _History:
    """A job's oriented curve: lower is better."""

    job: Job
    x: tuple[float, ...]
    y: tuple[float, ...]

    @property
    def shown(self) -> float:
        """Improvement from the first report to the best one."""
        return max(0.0, self.y[0] - min(self.y)) if self.y else 0.0


def estimate(jobs: Iterable[Job], quantum_gpu_s: float) -> Mapping[int, Utility]:
    """Utilities of all jobs that take part in exploration (job id -> utility).

    `quantum_gpu_s` is how far ahead a decision looks, per GPU of the job. Jobs without an `Exploration` have no
    entry.
    """
    sweeps: defaultdict[tuple[str, str, str], list[_History]] = defaultdict(list)
    for job in jobs:
        if job.exploration is not None:
            sweeps[_sweep_key(job, job.exploration)].append(_history(job, job.exploration))
    result: dict[int, Utility] = {}
    for members in sweeps.values():
        result.update(_estimate_sweep(members, quantum_gpu_s))
    return result


def _sweep_key(job: Job, exploration: Exploration) -> tuple[str, str, str]:
    """Jobs whose metrics compare: same user, sweep and metric."""
    return job.user, exploration.sweep or f"job {job.job_id}", exploration.metric


def _history(job: Job, exploration: Exploration) -> _History:
    sign = 1.0 if exploration.direction is Direction.MIN else -1.0
    return _History(job, tuple(p.gpu_s for p in job.points), tuple(sign * p.value for p in job.points))


def _estimate_sweep(members: list[_History], quantum_gpu_s: float) -> dict[int, Utility]:
    curves = {m.job.job_id: fit(m.x, m.y) for m in members}
    scale = max((m.shown for m in members), default=0.0) or 1.0
    prior = _prior(members, curves, quantum_gpu_s, scale)
    return {m.job.job_id: _utility(m, curves[m.job.job_id], prior, quantum_gpu_s, scale) for m in members}


def _prior(
    members: list[_History],
    curves: Mapping[int, LearningCurve | None],
    quantum_gpu_s: float,
    scale: float,
) -> Utility:
    """What a configuration nobody has tried is expected to do in its first quantum: the best a sibling did.

    Optimism in the face of uncertainty: an untried configuration may turn out as good as the best one, and a
    short look costs little. Without any sibling's report it counts as learning the whole scale in a quantum.
    """
    firsts = []
    for member in members:
        curve = curves[member.job.job_id]
        if curve is not None:
            firsts.append(curve.improvement(0.0, quantum_gpu_s * member.job.request.total).mean / scale)
    first = max(firsts, default=1.0)
    return Utility(first / quantum_gpu_s, first / quantum_gpu_s, 1.0, 1.0, None, scale, measured=False)


def _utility(
    member: _History, curve: LearningCurve | None, prior: Utility, quantum_gpu_s: float, scale: float
) -> Utility:
    if curve is None:
        return prior
    job = member.job
    ahead = quantum_gpu_s * max(job.request.total, 1)
    spent = max(member.x)
    horizon = _horizon_gpu_s(job, spent)
    step = curve.improvement(spent, spent + min(ahead, horizon))
    rest = curve.improvement(spent, spent + horizon)
    return Utility(
        value=step.mean / scale / ahead,
        std=step.std / scale / ahead,
        remaining=rest.mean / scale,
        remaining_std=rest.std / scale,
        best=min(member.y),
        scale=scale,
        measured=True,
    )


def _horizon_gpu_s(job: Job, spent_gpu_s: float) -> float:
    """GPU-seconds until the job's last step; as much again as it has had, when it did not say."""
    last = job.points[-1]
    if job.total_steps is None or last.step <= 0:
        return spent_gpu_s
    return max(0.0, spent_gpu_s * (job.total_steps - last.step) / last.step)
