"""One policy on one set of sweeps, in the project's own simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from benchmarks.best_model.drawn import DrawnSweep, regret_area
from benchmarks.best_model.timed import trace
from sched_policy.model import Job
from sched_policy.policy import SchedulingPolicy
from sched_policy.snapshot import Snapshot
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Settings
from simulation.results.outcome import Ending
from simulation.traces.trace import ClusterShape


class Reached(Struct, frozen=True):
    """What became of one sweep. Times from its submission; infinite where its best was not reached.

    Attributes:
        task: its task.
        reached_s: when a report was within 1 % of the best that any of its trainings can report.
        reached_gpu_s: GPU-seconds that the sweep had held by then.
        all_gpu_s: GPU-seconds that it held in all.
        end_s: when the last of its trainings ended.
        regret_area: see `drawn.regret_area`; None where only the way to the best was simulated.

    """

    task: str
    reached_s: float
    reached_gpu_s: float
    all_gpu_s: float
    end_s: float
    regret_area: float | None = None


class Watched:
    """When a policy saw each sweep become better, and reach its best: up to one interval after the report."""

    def __init__(self, drawn: Sequence[DrawnSweep]) -> None:
        self._goals = {f"user{k + 1}": sweep.good_enough for k, sweep in enumerate(drawn)}
        self.reached: dict[str, tuple[float, float]] = {}
        self.better: dict[str, list[tuple[float, float]]] = {user: [] for user in self._goals}
        self._seen: dict[int, tuple[int, float]] = {}

    def _best(self, job: Job) -> float:
        """The best value that the job has reported; remembered, because most jobs have not reported since."""
        count, best = self._seen.get(job.job_id, (0, math.inf))
        fresh = (point.value for point in job.points[count:])
        self._seen[job.job_id] = len(job.points), min((best, *fresh))
        return self._seen[job.job_id][1]

    def look(self, snapshot: Snapshot) -> None:
        """Look at the reports that the policy sees in a pass."""
        for user, goal in self._goals.items():
            own = [job for job in (*snapshot.jobs, *snapshot.ended) if job.user == user]
            best = min((self._best(job) for job in own), default=math.inf)
            if best < min((value for _, value in self.better[user][-1:]), default=math.inf):
                held_gpu_s = sum(job.executed_s(snapshot.now_s) * job.request.total for job in own)
                self.better[user].append((held_gpu_s, best))
                if best <= goal:
                    self.reached.setdefault(user, (snapshot.now_s, held_gpu_s))


def run(policy: SchedulingPolicy, drawn: Sequence[DrawnSweep], gpus: int) -> list[Reached]:
    """Simulate the sweeps on one node of so many GPUs, with the simulator's own costs.

    The policy is asked every 30 s, the simulator's default, or every 0.2 % of the shortest usual training:
    trainings of a day report every ten minutes, and looking more often would only make the simulation longer.
    """
    watched = Watched(drawn)
    usual_s = min(float(np.median([curve.run_s for curve in sweep.curves])) for sweep in drawn)
    settings = Settings(interval_s=max(Settings().interval_s, 0.002 * usual_s))
    outcome = simulate(trace(drawn), ClusterShape(1, gpus), policy, settings, watch=watched.look)
    found = []
    for k, sweep in enumerate(drawn):
        user = f"user{k + 1}"
        own = [record for record in outcome.jobs if record.user == user]
        end_s = max(record.end_s for record in own)
        # A report with which the last training ends is not followed by a look of the policy.
        spent_gpu_s = sum(record.spent_gpu_s for record in own)
        is_whole = all(record.ending is Ending.COMPLETED for record in own)
        last = (end_s, spent_gpu_s) if is_whole else (math.inf, math.inf)
        at_s, gpu_s = watched.reached.get(user, last)
        area = regret_area(watched.better[user], sweep)
        found.append(Reached(sweep.task, at_s, gpu_s, spent_gpu_s, end_s, area))
    return found
