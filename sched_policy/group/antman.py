"""AntMan (OSDI 2020): opportunistic jobs on the GPUs of guaranteed ones.

Non-preemptive; a job never changes its class. The original lets a guaranteed job that does not fit collect GPUs while
they stand idle; here it is promised nothing and waits its turn, since a plan holds no half gangs.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.group.base import Guarantee, Interference, Shared
from sched_policy.group.gpus import GpuMap
from sched_policy.model import GpuRequest, Job
from sched_policy.place import Place
from sched_policy.plan import Group, Ranking, Start
from sched_policy.snapshot import Floats, Snapshot


class Opportunistic(Struct, frozen=True):
    """At most one guaranteed and one opportunistic job per GPU.

    A guaranteed job takes GPUs without another guaranteed one, unused ones first; an opportunistic job takes GPUs
    without another opportunistic one, the least used first.
    """

    interference: ClassVar[Interference] = Guarantee()

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Shared:
        """Guaranteed jobs first, each class in the order of `ranking`; whatever fits starts."""
        gpus = GpuMap(snapshot)
        waits = snapshot.columns.waits
        queue = [row for row in ranking.rows.tolist() if waits[row]]
        queue.sort(key=lambda row: not snapshot.jobs[row].guaranteed)
        starts: list[Start] = []
        groups: list[Group] = []
        too_large: set[tuple[GpuRequest, str, bool, bool]] = set()  # within a plan room only gets less
        for row in queue:
            job = snapshot.jobs[row]
            shape = (job.request, job.partition, job.guaranteed, job.may_share)
            if shape in too_large:
                continue
            found = gpus.find(job.request, job.partition, place, _cost(gpus, job))
            if found is None:
                too_large.add(shape)
                continue
            beside = sorted({int(gpus.first[gpu]) for gpu in found} - {-1})
            gpus.hold(row, found)
            if beside:
                neighbours = tuple(snapshot.jobs[other].job_id for other in beside)
                groups.append(Group((*neighbours, job.job_id), "an opportunistic job in the gaps of a guaranteed one"))
            kind = "guaranteed" if job.guaranteed else "opportunistic"
            starts.append(Start(job.job_id, gpus.named(found), f"{kind}; shares with {len(beside)} job(s)"))
        return Shared(tuple(starts), tuple(groups))


def _cost(gpus: GpuMap, job: Job) -> Floats:
    """Use of each GPU, infinity where a job of the same class is or one of the two shares with none, shape (N, G)."""
    if not job.may_share:
        return np.where(gpus.jobs > 0, np.inf, 0.0)
    same, other = (gpus.guaranteed, gpus.opportunistic) if job.guaranteed else (gpus.opportunistic, gpus.guaranteed)
    return np.where(same > 0, np.inf, other.astype(np.float64))
