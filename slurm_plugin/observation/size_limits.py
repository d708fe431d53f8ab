"""Which sizes Slurm lets elastic jobs have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from slurm_plugin.client.changes import ChangeFailure, NotNow, SetGres, SetNodeCount
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.standing import exceeds_limit

LIMIT_HOLDS_S = 3600.0
"""How long a job is not enlarged again to a size for which a limit left no room: others may go on to use it up."""

_STARTED = "no longer pending"
"""What Slurm says of a job that it has started since we looked."""


class SizeLimits:
    """Sizes at which limits of associations, QOS and partitions have kept jobs from starting, and refused sizes."""

    def __init__(self) -> None:
        self._by_job: dict[int, tuple[int, float]] = {}  # GPUs, and when Slurm last said so
        self._refused_s: dict[int, float] = {}

    def gpus(self, jobs: Iterable[SlurmJob], now_s: float) -> Mapping[int, int]:
        """The smallest such size of each job."""
        known = self._by_job
        self._by_job = {}
        for job in jobs:
            gpus, told_s = known.get(job.job_id, (job.gpus, -math.inf))
            if exceeds_limit(job):
                gpus, told_s = min(gpus, job.gpus), now_s
            if now_s - told_s <= LIMIT_HOLDS_S:
                self._by_job[job.job_id] = gpus, told_s
        return {job_id: gpus for job_id, (gpus, _) in self._by_job.items()}

    def note(self, failures: Iterable[ChangeFailure], now_s: float) -> None:
        """Take in which new sizes Slurm has refused, but for jobs that it has started meanwhile."""
        for failure in failures:
            change = failure.change
            is_answer = not isinstance(failure, NotNow) and _STARTED not in failure.message
            if is_answer and isinstance(change, SetGres | SetNodeCount):
                self._refused_s[change.job_id] = now_s

    def refused(self, jobs: Iterable[SlurmJob], now_s: float) -> frozenset[int]:
        """The jobs whose size Slurm has refused to change in the last hour."""
        present = {job.job_id for job in jobs}
        told = self._refused_s.items()
        self._refused_s = {one: at_s for one, at_s in told if one in present and now_s - at_s <= LIMIT_HOLDS_S}
        return frozenset(self._refused_s)
