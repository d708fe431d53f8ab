"""From a plan to the smallest set of changes in Slurm, and the changes that undo everything. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from explsched.preemption_record import PREFIX as PREEMPTION_PREFIX
from explsched.preemption_record import without_words
from sched_policy.model import Job
from sched_policy.plan import Plan, Resize
from slurm_plugin.client.changes import (
    Change,
    ChangeFailure,
    DelayStart,
    NotNow,
    SetAdminComment,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    StartAtOnce,
    TargetJob,
)
from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.config import Config
from slurm_plugin.observation.group_annotation import PREFIX as GROUP_PREFIX
from slurm_plugin.observation.group_annotation import is_pinned
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.standing import (
    REST_S,
    SETTLE_S,
    exceeds_limit,
    has_settled,
    waits_for_begin,
    waits_for_requeue_delay,
)
from slurm_plugin.steering.grouping import group_changes
from slurm_plugin.steering.leases import lease_changes, without_leases
from slurm_plugin.steering.order import OrderLimits, order_changes
from slurm_plugin.steering.places import place_changes
from slurm_plugin.steering.release import Releases
from slurm_plugin.steering.slurm_order import kept_paused


class SteeringLimits(Struct, frozen=True):
    """What an admin allows: how the order is written, and how far a planned start may drift before its lease moves."""

    order: OrderLimits
    slack_s: float
    scope: Literal["user", "account", "partition"] = "partition"

    @classmethod
    def of(cls, config: Config) -> Self:
        """The limits set by a configuration."""
        slurm = config.slurm
        order = OrderLimits(slurm.site_factor_range, slurm.order_depth, slurm.max_per_pass)
        return cls(order, config.backfill.slack_s, config.order.scope)


def reordered(
    plan: Plan, ranked: Sequence[int], seen: Observation, limits: SteeringLimits
) -> tuple[SetSiteFactor, ...]:
    """The site factors that give the waiting jobs the plan's order; `ranked` is the `wanted_order` for it."""
    if limits.scope != "partition":
        return place_changes(seen, ranked, limits.order.max_per_pass)
    waiting = (seen.jobs[job_id] for job_id in ranked if seen.jobs[job_id].state == "PENDING")
    factors = seen.known.throttled_factors  # their tasks start in the plan's order, too
    whole = (replace(job, site_factor=factors[job.job_id]) if job.job_id in factors else job for job in waiting)
    returning = _returning(plan, seen)
    known = (job for job in whole if job.site_factor is not None or job.job_id in returning)
    return order_changes(known, limits.order)


def beside_order(
    plan: Plan, releases: Releases, seen: Observation, slack_s: float, order: Iterable[SetSiteFactor]
) -> tuple[Change, ...]:
    """Sizes, leases, delays and groups, where `order` has all site factors that the pass is about to write.

    If a job is resized now, a later pass lifts its delay, once Slurm has accepted the new size: from then on Slurm may
    start the job at any moment.
    """
    sizes = resize_changes(plan, seen)
    return (
        *sizes,
        *lease_changes(plan, seen, slack_s, {change.job_id: change.site_factor for change in order}),
        *delay_changes(plan, seen, {change.job_id for change in sizes}),
        *group_changes(plan, releases, seen),
    )


def _returning(plan: Plan, seen: Observation) -> AbstractSet[int]:
    """Jobs whose delay after a requeue or a rest is lifted by this pass or one of the next: their position counts now.

    Slurm does not show the site factor of a job that may not start yet (held, dependency, begin time). Others of these
    are not written: that would be again in each pass, and leave none of its writes to those that may start.
    """
    planned = {job.job_id for job in seen.snapshot.jobs if job.eligible} - plan.rests
    return {job_id for job_id in planned if waits_for_begin(seen.jobs[job_id], seen.snapshot.now_s)}


def delay_changes(plan: Plan, seen: Observation, resized: Container[int]) -> Iterator[StartAtOnce | DelayStart]:
    """Lift Slurm's delay after a requeue, for jobs that consented to be requeued and whose last run has lasted.

    Jobs that their sweep keeps paused are delayed instead: Slurm would start them on idle GPUs. The delay is lifted
    once the plan lets them run, or once the daemon no longer schedules them, but not before their own begin time.
    """
    now_s, paused = seen.snapshot.now_s, kept_paused(plan, seen)
    returning = {job.job_id for job in seen.snapshot.jobs if job.allows_preemption} & seen.returning
    for record in (record for record in seen.jobs.values() if record.job_id not in resized):
        if record.job_id in paused:
            if record.state == "PENDING" and (record.eligible_s or 0.0) < now_s + REST_S / 2:
                yield DelayStart(record.job_id, math.ceil(now_s + REST_S))
        elif record.job_id in seen.known.rests:
            yield from _lifted(record, seen.known.rests[record.job_id], now_s)
        elif record.job_id in returning and has_settled(record, now_s):
            yield StartAtOnce(record.job_id)


def _lifted(record: SlurmJob, own_begin_s: float, now_s: float) -> Iterator[StartAtOnce | DelayStart]:
    """Takes our delay from a job: it may start at its own begin time, and once every node would take it."""
    if not waits_for_begin(record, now_s):
        return  # the delay is over
    begin_s = math.ceil(max(own_begin_s, record.submit_s + SETTLE_S))
    if begin_s <= now_s:
        yield StartAtOnce(record.job_id)
    elif begin_s != record.eligible_s:
        yield DelayStart(record.job_id, begin_s)


def within_limits(plan: Plan, seen: Observation) -> Plan:
    """The plan without sizes for which limits leave no room, and larger ones for jobs of which Slurm refuses any.

    A plan knows no limits. Another try would cost a running job a preemption, and then fail again.
    """

    def may_have(resize: Resize) -> bool:
        gpus, job_id = resize.request.total, resize.job_id
        is_refused = job_id in seen.known.refused_sizes and gpus > seen.jobs[job_id].gpus
        return not is_refused and gpus < seen.known.limited_gpus.get(job_id, math.inf)

    return replace(plan, resizes=tuple(filter(may_have, plan.resizes)))


def reduced_to_limits(plan: Plan, seen: Observation) -> Plan:
    """The plan with smaller sizes for elastic jobs that wait because of a limit.

    One may have been enlarged beyond it, and would wait for as long as others of its account run. What is left to Slurm
    keeps its size.
    """
    elastic = (job for job in seen.snapshot.jobs if job.elastic is not None and job.job_id not in seen.unmodelled)
    limited = (job for job in elastic if exceeds_limit(seen.jobs[job.job_id]))
    return replace(
        plan, resizes=(*plan.resizes, *itertools.chain.from_iterable(_reduced(job, seen) for job in limited))
    )


def _reduced(job: Job, seen: Observation) -> Iterator[Resize]:
    sizes = job.elastic.requests() if job.elastic is not None else ()
    smaller = max((size for size in sizes if size.total < job.request.total), key=lambda size: size.total, default=None)
    if smaller is not None:
        why = f"a limit keeps it from starting with {job.request.total} GPUs ({seen.jobs[job.job_id].reason})"
        yield Resize(job.job_id, smaller, why)


def resize_changes(plan: Plan, seen: Observation) -> tuple[SetNodeCount | SetGres, ...]:
    """New sizes of waiting jobs. A running job is preempted first and resized while it waits."""
    return tuple(
        change
        for resize in plan.resizes
        if (record := seen.jobs[resize.job_id]).state == "PENDING"
        for change in _resized(record, resize)
    )


def restored(failures: Iterable[ChangeFailure], jobs: Mapping[int, SlurmJob]) -> tuple[Change, ...]:
    """The old counts of jobs whose new ones were refused: Slurm 22.05 applies parts of an update that it refuses.

    With the CPUs of one size and the nodes of another a job might never start.
    """
    answers = (failure for failure in failures if not isinstance(failure, NotNow))
    refused = {failure.change.job_id for failure in answers if isinstance(failure.change, SetNodeCount)}
    records = (jobs[job_id] for job_id in sorted(refused & jobs.keys()))
    return tuple(SetNodeCount(job.job_id, job.nodes, job.tasks, job.cpus) for job in records)


def _resized(record: SlurmJob, resize: Resize) -> Iterator[SetNodeCount | SetGres]:
    request = resize.request
    if request.nodes != record.nodes:
        tasks, cpus = (max(1, count // record.nodes) * request.nodes for count in (record.tasks, record.cpus))
        yield SetNodeCount(record.job_id, request.nodes, tasks, cpus)
    if request.per_node is not None and request.per_node != record.gpus_per_node:
        yield SetGres(record.job_id, _with_gpus(record.gres_per_node, request.per_node))


def _with_gpus(gres: str, gpus: int) -> str:
    """The same resources with another number of GPUs, of the same type: `gpu:a100:2,nvme:1` -> `gpu:a100:4,nvme:1`."""
    return ",".join(_with_count(part, gpus) if re.match(r"gpu(:|$)", part) else part for part in gres.split(","))


def _with_count(gres: str, count: int) -> str:
    *words, last = gres.split(":")
    return ":".join([*words, *([] if last.isdecimal() else [last]), str(count)])


_OURS = (GROUP_PREFIX, PREEMPTION_PREFIX)


def taken_back(
    found: ClusterRecords,
    others_factors: Mapping[int, int],
    unseen_factors: Mapping[int, int],
    own_begins_s: Mapping[int, float] | None,
    now_s: float,
) -> tuple[Change, ...]:
    """The changes that undo everything of ours.

    `others_factors` are the parts of site factors that others have set, by job id, and `unseen_factors` those of site
    factors that Slurm does not show and ours may be in. `own_begins_s` has the begin times before our delays; None if
    there is no record of these.
    """
    ours = (job.job_id for job in found.jobs if _delayed_by_daemon(job, now_s, is_recorded=own_begins_s is not None))
    begins_s = dict.fromkeys(ours, 0.0) | dict(own_begins_s or {})
    return (
        *without_own_factors(found.jobs, others_factors),
        *(SetSiteFactor(job_id, theirs) for job_id, theirs in unseen_factors.items()),
        *without_leases(found),
        *without_rests(found.jobs, begins_s, now_s),
        *(change for job in found.jobs for change in _comment(job)),
    )


def without_own_factors(jobs: Iterable[SlurmJob], others_factors: Mapping[int, int]) -> Iterator[SetSiteFactor]:
    """Reset site factors of waiting jobs to the part that others have set, 0 for jobs without one."""
    for job in jobs:
        theirs = others_factors.get(job.job_id, 0)
        if job.state == "PENDING" and job.site_factor is not None and job.site_factor != theirs:
            yield SetSiteFactor(job.job_id, theirs)


def given_back(seen: Observation, others: Mapping[int, int], most: int) -> tuple[SetSiteFactor, ...]:
    """Remove our part of the site factor from waiting jobs that are no longer steered, at most `most` in a pass.

    They were moved to a partition that is not steered, or no longer ask for GPUs. Their raised priority would put them
    above other users' jobs for good. `others` are the parts of site factors that others have set.
    """
    records = (seen.jobs[job_id] for job_id in sorted(strays(seen)))
    return tuple(without_own_factors(records, others))[:most]


def strays(seen: Observation) -> AbstractSet[int]:
    """Jobs that are not steered."""
    return seen.jobs.keys() - {job.job_id for job in seen.snapshot.jobs}


def without_rests(
    jobs: Iterable[SlurmJob], own_begins_s: Mapping[int, float], now_s: float
) -> Iterator[StartAtOnce | DelayStart]:
    """Lift our delays; `own_begins_s` has the jobs' begin times before them."""
    for job in jobs:
        if job.job_id in own_begins_s:
            yield from _lifted(job, own_begins_s[job.job_id], now_s)


def _delayed_by_daemon(job: SlurmJob, now_s: float, *, is_recorded: bool) -> bool:
    """Whether a job that we have paused waits because of that, as far as can be told: for Slurm's delay, or shortly.

    Where our own delays are recorded no other one is taken for ours.
    """
    is_ours = any(word.startswith(PREEMPTION_PREFIX) for word in job.admin_comment.split())
    if not is_ours or job.restarts == 0 or not waits_for_begin(job, now_s):
        return False
    return waits_for_requeue_delay(job, now_s) or (not is_recorded and (job.eligible_s or 0.0) - now_s <= REST_S)


def _comment(job: SlurmJob) -> Iterator[TargetJob | SetAdminComment]:
    """Remove our entries from the AdminComment, and the pin of a waiting job."""
    note = without_words(job.admin_comment, *_OURS)
    if note == job.admin_comment.strip():
        return
    if job.state == "PENDING" and is_pinned(job):
        yield TargetJob(job.job_id, (), note)
    else:
        yield SetAdminComment(job.job_id, note)
