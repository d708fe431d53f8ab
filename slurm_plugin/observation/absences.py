"""When whole nodes are not there for the planned jobs. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from sched_policy.model import Absence
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmReservation
from slurm_plugin.observation.standing import leased_job

_OWNING = ("USER", "MCS")


def absences(seen: ClusterRecords, now_s: float) -> Iterator[Absence]:
    """Nodes that reservations take, and those of jobs that share theirs only with jobs of their own user or MCS label.

    No planned job is in such a reservation. Leases are left out, and so are reservations of a few cores, beside which
    Slurm gives away the GPUs. One with TIME_FLOAT always counts from now.

    To further jobs of its owner a node of the second kind is open: Slurm starts them there without a plan.
    """
    cpus = {node.name: node.cpus for node in seen.nodes}
    for reservation in seen.reservations:
        if leased_job(reservation.name) is None and not _leaves_gpus(reservation, cpus):
            start_s = now_s if "TIME_FLOAT" in reservation.flags else reservation.start_s
            yield Absence(reservation.nodes, start_s, reservation.end_s)
    ends_s: defaultdict[str, float] = defaultdict(float)
    for job in seen.jobs:
        if job.exclusive in _OWNING:
            for name in job.node_names:
                ends_s[name] = max(ends_s[name], _end_s(job, now_s))
    for name, end_s in ends_s.items():
        yield Absence((name,), now_s, end_s)


def _leaves_gpus(reservation: SlurmReservation, cpus: dict[str, int]) -> bool:
    """Whether it takes CPUs alone, of which it leaves at least half: with fewer left, many jobs would not fit."""
    return 0 < 2 * reservation.cpus <= sum(cpus.get(name, 0) for name in reservation.nodes)


def _end_s(job: SlurmJob, now_s: float) -> float:
    """When a job that holds nodes leaves them at the latest; infinity if that is unknown, or is over already."""
    if job.start_s is None or job.time_limit_s is None:
        return math.inf
    end_s = job.start_s + job.suspended_s + job.time_limit_s
    return end_s if end_s > now_s else math.inf
