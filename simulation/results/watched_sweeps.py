"""How soon a policy leads the sweeps of a trace to their best models, seen by watching a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import median

from sched_policy.snapshot import Snapshot
from simulation.results.outcome import SweepReached
from simulation.traces.learning import Learning
from simulation.traces.trace import TraceJob

TOLERANCE = 0.01
"""A model counts as the sweep's best if it is worse than that by this part of it at most."""


class WatchedSweeps:
    """When a policy saw each sweep of a trace become better: up to one pass after the report."""

    def __init__(self, jobs: Iterable[TraceJob]) -> None:
        """`jobs` are those that are submitted; those without learning curves or sweep are not watched."""
        members: dict[tuple[str, str], list[tuple[TraceJob, Learning]]] = {}
        for job in jobs:
            if job.learning is not None and job.learning.exploration.sweep is not None:
                members.setdefault((job.user, job.learning.exploration.sweep), []).append((job, job.learning))
        self._sweeps = {
            key: SweepProgress(
                min(job.submit_s for job, _ in own),
                sum(job.gpus * job.run_s for job, _ in own),
                min(learning.best_of_sweep for _, learning in own),
                [float(learning.losses[0]) for _, learning in own],
            )
            for key, own in members.items()
        }
        self._of_job = {job.job_id: (key, learning) for key, own in members.items() for job, learning in own}
        self._seen: dict[int, tuple[int, float]] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Look at the reports that the policy sees in a pass."""
        held_gpu_s = dict.fromkeys(self._sweeps, 0.0)
        values: dict[tuple[str, str], float] = {}
        for job in (*snapshot.jobs, *snapshot.ended):
            if job.job_id in self._of_job:
                key, _ = self._of_job[job.job_id]
                count, best = self._seen.get(job.job_id, (0, inf))
                best = min((best, *(point.value for point in job.points[count:])))
                self._seen[job.job_id] = len(job.points), best
                held_gpu_s[key] += job.executed_s(snapshot.now_s) * job.request.total
                values[key] = min(best, values.get(key, inf))
        for key, value in values.items():
            if value < inf:
                self._sweeps[key].note(snapshot.now_s, held_gpu_s[key], value)

    def reached(self, ends: Iterable[tuple[int, float, float, bool]]) -> tuple[SweepReached, ...]:
        """What became of each sweep, by user and name.

        `ends` are all jobs: id, end in seconds, the GPU-seconds that they held, whether they completed. The
        policy does not look again after the last report of a sweep.
        """
        held_gpu_s, last = dict.fromkeys(self._sweeps, 0.0), dict.fromkeys(self._sweeps, (0.0, inf))
        for job_id, end_s, gpu_s, is_complete in ends:
            if job_id in self._of_job:
                key, learning = self._of_job[job_id]
                held_gpu_s[key] += gpu_s
                if is_complete:
                    last[key] = max(end_s, last[key][0]), min(float(learning.losses.min()), last[key][1])
        for key, (end_s, value) in last.items():
            if value < inf:
                self._sweeps[key].note(end_s, held_gpu_s[key], value)
        return tuple(self._sweeps[key].reached() for key in sorted(self._sweeps))


class SweepProgress:
    """One sweep of one user while a policy is watched.

    `firsts` are the first losses of its trainings, `work_gpu_s` is what all need without interruption.
    """

    def __init__(self, submit_s: float, work_gpu_s: float, best: float, firsts: Sequence[float]) -> None:
        self._submit_s = submit_s
        self._work_gpu_s = work_gpu_s
        self._best = best
        self._first = median(firsts)
        self._better: list[tuple[float, float, float]] = []

    def note(self, now_s: float, held_gpu_s: float, value: float) -> None:
        """The best report by then, and the GPU-seconds that the sweep has held."""
        if not self._better or value < self._better[-1][2]:
            self._better.append((now_s, held_gpu_s, value))

    def reached(self) -> SweepReached:
        """What became of it."""
        goal = self._best + TOLERANCE * abs(self._best)
        when = next(((at_s, gpu_s) for at_s, gpu_s, value in self._better if value <= goal), None)
        scale = max(self._first - self._best, 1e-12 * max(1.0, abs(self._best)))
        area, at_gpu_s, regret = 0.0, 0.0, 1.0
        for _, gpu_s, value in (*self._better, (inf, inf, inf)):
            until = min(gpu_s, self._work_gpu_s)
            area += regret * max(0.0, until - at_gpu_s)
            at_gpu_s = max(at_gpu_s, until)
            regret = min(regret, max(0.0, (value - self._best) / scale))
        best_s, best_gpu_s = (when[0] - self._submit_s, when[1]) if when else (None, None)
        return SweepReached(best_s, best_gpu_s, area / self._work_gpu_s)
