"""A policy's plan, checked against the snapshot, so that a policy of another package can do no harm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain

import numpy as np

from explsched.errors import PolicyError
from sched_policy.model import Job, JobState
from sched_policy.plan import Plan, Ranking
from sched_policy.policy import SchedulingPolicy
from sched_policy.snapshot import Snapshot


def checked_plan(policy: SchedulingPolicy, snapshot: Snapshot) -> Plan:
    """The policy's plan. Raises `PolicyError`, naming the policy, if it fails or plans what cannot be carried out."""
    try:
        plan = policy.plan(snapshot)
    except Exception as error:
        raise PolicyError(f"policy {policy.name!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(plan, Plan):
        raise PolicyError(f"policy {policy.name!r} made a {type(plan).__name__} instead of a Plan")
    faults = tuple(_faults(plan, snapshot))
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise PolicyError(f"policy {policy.name!r} returned an invalid plan: {'; '.join(faults[:3])}{more}")
    return plan


def _faults(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    named = {
        "starts": [start.job_id for start in plan.starts],
        "reserves for": [reservation.job_id for reservation in plan.reservations],
        "preempts": [preemption.job_id for preemption in plan.preemptions],
        "resizes": [resize.job_id for resize in plan.resizes],
        "stops": [stop.job_id for stop in plan.stops],
        "groups": [job_id for group in plan.groups for job_id in group.job_ids],
    }
    if not isinstance(plan.scores, Ranking):  # a `Ranking` was made from the snapshot, and its texts cost time
        named["scores"] = [score.job_id for score in plan.scores]
    gaining = [p.beneficiary for p in plan.preemptions if p.beneficiary is not None]
    ids = np.array([*gaining, *chain.from_iterable(named.values())], dtype=np.int64)
    rows = np.flatnonzero(np.isin(snapshot.columns.job_id, ids)).tolist()
    jobs = {job.job_id: job for job in map(snapshot.jobs.__getitem__, rows)}
    unknown = [(verb, job_id) for verb, job_ids in named.items() for job_id in job_ids if job_id not in jobs]
    yield from (f"it {verb} job {job_id}, which is not in the snapshot" for verb, job_id in unknown)
    if unknown:
        return
    yield from _wrong_starts(plan, jobs)
    yield from _wrong_reservations(plan, snapshot, jobs)
    yield from _wrong_interruptions(plan, jobs)
    yield from _overcommitted(plan, snapshot)


def _wrong_starts(plan: Plan, jobs: dict[int, Job]) -> Iterator[str]:
    for job_id, times in Counter(start.job_id for start in plan.starts).items():
        job = jobs[job_id]
        if job.state is not JobState.PENDING or not job.eligible:
            yield f"it starts job {job_id}, which does not wait"
        if times > (most := job.array_tasks - job.throttled_tasks):
            yield f"it starts job {job_id} {times} times, which has {most} task(s) that may start"
    resized = {resize.job_id: resize.request for resize in plan.resizes}
    for start in plan.starts:
        given = sum(share.gpus for share in start.placement)
        request = resized.get(start.job_id, jobs[start.job_id].request)
        # Slurm's numbers of nodes and GPUs need not multiply: the fixed share of each node counts.
        wanted = request.total if request.per_node is None else request.nodes * request.per_node
        if given != wanted:
            yield f"it gives job {start.job_id} {given} GPUs instead of {wanted}"


def _wrong_reservations(plan: Plan, snapshot: Snapshot, jobs: dict[int, Job]) -> Iterator[str]:
    for reservation in plan.reservations:
        if jobs[reservation.job_id].state is not JobState.PENDING:
            yield f"it makes a reservation for job {reservation.job_id}, which is not waiting"
        if not math.isfinite(reservation.start_s):
            yield f"its reservation for job {reservation.job_id} starts at {reservation.start_s}"
        for share in reservation.placement:
            if share.node not in snapshot.nodes.position:
                yield f"it reserves node {share.node} for job {reservation.job_id}, which is not in the snapshot"


def _wrong_interruptions(plan: Plan, jobs: dict[int, Job]) -> Iterator[str]:
    for preemption in plan.preemptions:
        job = jobs[preemption.job_id]
        if job.state is not JobState.RUNNING or not job.is_preemptible:
            yield f"it preempts job {job.job_id}, which does not run or does not allow preemption"
        gains = None if preemption.beneficiary is None else jobs.get(preemption.beneficiary)
        if preemption.beneficiary is not None and (gains is None or not gains.may_displace or gains.holds_gpus):
            yield f"it preempts job {job.job_id} for job {preemption.beneficiary}, which may not displace others"
        elif gains is not None and gains.scope != job.scope and not _is_favoured(gains, job):
            yield f"it preempts job {job.job_id} of scope {job.scope!r} for job {gains.job_id} of {gains.scope!r}"
    for job_id, times in Counter(resize.job_id for resize in plan.resizes).items():
        if times > 1:
            yield f"it resizes job {job_id} {times} times"
    for resize in plan.resizes:
        job = jobs[resize.job_id]
        if job.elastic is None or resize.request not in job.elastic.requests() or job.array_tasks > 1:
            yield f"it resizes job {job.job_id} to {resize.request.total} GPUs, which it did not offer"
        if job.state is not JobState.PENDING and not (job.state is JobState.RUNNING and job.is_preemptible):
            yield f"it resizes job {job.job_id}, which neither waits nor may be preempted"
    for stop in plan.stops:
        job = jobs[stop.job_id]
        if job.exploration is None or not job.exploration.may_stop:
            yield f"it stops job {job.job_id}, which does not allow that"


def _is_favoured(gains: Job, job: Job) -> bool:
    """Whether the resource manager's fair share is known for both jobs and favours the first."""
    return gains.fair_share is not None and job.fair_share is not None and gains.fair_share > job.fair_share


def _overcommitted(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    """GPUs held alone count each; GPUs held together (`indices`) count once, and only on top of those held alone."""
    wanted = [share for start in plan.starts for share in start.placement]
    touched = {share.node for share in wanted}
    held = [share for job in snapshot.running for share in job.allocation if share.node in touched] if touched else []
    used: Counter[str] = Counter()
    together: set[tuple[str, int]] = set()
    for share in (*held, *wanted):
        if share.indices:
            together.update((share.node, index) for index in share.indices)
        else:
            used[share.node] += share.gpus
    used.update(node for node, _index in together)
    capacity = {name: snapshot.nodes[i].gpus for name, i in snapshot.nodes.position.items() if name in touched}
    for node in sorted(touched):
        if node not in capacity:
            yield f"it places jobs on node {node}, which is not in the snapshot"
        elif used[node] > capacity[node]:
            yield f"it gives away {used[node]} GPUs of node {node}, which has {capacity[node]}"
