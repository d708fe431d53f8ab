"""When whole nodes are not there for the planned jobs. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from sched_policy.model import Absence
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode, SlurmReservation
from slurm_plugin.observation.standing import leased_job

_OWNING = ("USER", "MCS")


def absences(seen: ClusterRecords, now_s: float) -> Iterator[Absence]:
    """Nodes that reservations take, and those of jobs that share theirs only with jobs of their own user or MCS label.

    No planned job is in such a reservation. Leases are left out, and so are reservations of a few cores, beside which
    Slurm gives away the GPUs. One with TIME_FLOAT always counts from now.

    To further jobs of its owner a node of the second kind is open: Slurm starts them there without a plan, so no job
    is preempted for them (`owners`).
    """
    cpus = {node.name: node.cpus for node in seen.nodes}
    for reservation in seen.reservations:
        if leased_job(reservation.name) is None and not _leaves_gpus(reservation, cpus):
            start_s = now_s if "TIME_FLOAT" in reservation.flags else reservation.start_s
            yield Absence(reservation.nodes, start_s, reservation.end_s)
    ends_s: defaultdict[str, float] = defaultdict(float)
    for job in _owning(seen):
        for name in job.node_names:
            ends_s[name] = max(ends_s[name], _end_s(job, now_s))
    for name, end_s in ends_s.items():
        yield Absence((name,), now_s, end_s)


def owners(seen: ClusterRecords) -> frozenset[str]:
    """Users on whose own nodes a GPU is free, as far as Slurm accounts GPUs."""
    free = {node.name for node in seen.nodes if node.gpus_taken < node.gpus}
    return frozenset(job.user for job in _owning(seen) if not free.isdisjoint(job.node_names))


def without_reserved_cpus(seen: ClusterRecords) -> tuple[SlurmNode, ...]:
    """The nodes without the CPUs of reservations beside which their GPUs are given away.

    Slurm does not show which CPUs of which node they are: each node has lost its part of them.
    """
    cpus = {node.name: node.cpus for node in seen.nodes}
    taken: defaultdict[str, int] = defaultdict(int)
    for one in seen.reservations:
        if leased_job(one.name) is None and _leaves_gpus(one, cpus):
            for name in one.nodes:
                taken[name] += math.ceil(one.cpus / len(one.nodes))
    return tuple(
        replace(node, cpus=max(1, node.cpus - taken[node.name])) if node.name in taken else node for node in seen.nodes
    )


def _owning(seen: ClusterRecords) -> Iterator[SlurmJob]:
    """The jobs that have nodes for their user or label alone; those of one that completes are free at once."""
    return (job for job in seen.jobs if job.exclusive in _OWNING and job.state != "COMPLETING" and job.node_names)


def _leaves_gpus(reservation: SlurmReservation, cpus: Mapping[str, int]) -> bool:
    """Whether it takes CPUs alone, of which it leaves at least half: with fewer left, many jobs would not fit."""
    return 0 < 2 * reservation.cpus <= sum(cpus.get(name, 0) for name in reservation.nodes)


def _end_s(job: SlurmJob, now_s: float) -> float:
    """When a job that holds nodes leaves them at the latest; infinity if that is unknown, or is over already."""
    if job.start_s is None or job.time_limit_s is None:
        return math.inf
    end_s = job.start_s + job.suspended_s + job.time_limit_s
    return end_s if end_s > now_s else math.inf
