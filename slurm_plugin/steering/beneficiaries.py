"""Whether those for whom jobs are preempted would start, or whom their victims leave for: so who leaves in a pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from types import MappingProxyType

from msgspec.structs import replace

from sched_policy.model import Job, JobState
from sched_policy.plan import Plan, Preemption
from slurm_plugin.client.changes import CancelJob, Change, SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.requirements import allocate, fits, free_once_gone
from slurm_plugin.observation.standing import limits_of, may_start
from slurm_plugin.steering.backfill_replay import REPLAYED, started_once_gone
from slurm_plugin.steering.preemption import PreemptionTracker
from slurm_plugin.steering.release import releases
from slurm_plugin.steering.slurm_order import Turns, by_priority, kept_paused, on_places, wanted_order
from slurm_plugin.steering.underway import Look

_LIMITED = tuple(map(attrgetter, ("gpus", "cpus", "memory_mib", "nodes")))
"""What limits of associations and QOS count."""


def without_vain_preemptions(plan: Plan, seen: Observation, awaited: Collection[int | None] = ()) -> Plan:
    """The plan without preemptions whose beneficiary would not start, or may not as far as limits are known.

    `awaited` are the jobs for which others have been asked to leave, or have left.
    """
    kept = _not_in_vain(plan.preemptions, plan, seen)
    if seen.cluster.enforces_limits and len(turns := _in_turn(kept, seen, awaited)) < len(kept):
        kept = _not_in_vain(turns, plan, seen)  # those whose turn comes later may take what is freed now
    return replace(plan, preemptions=kept)


def _not_in_vain(preemptions: Sequence[Preemption], plan: Plan, seen: Observation) -> tuple[Preemption, ...]:
    """Those for jobs that would start if these victims left."""
    victims: defaultdict[int, set[int]] = defaultdict(set)
    for preemption in preemptions:
        if preemption.beneficiary is not None:
            victims[preemption.beneficiary].add(preemption.job_id)
    if not victims:
        return tuple(preemptions)
    queue = on_places(wanted_order(plan, seen.snapshot, releases(plan, seen)), seen.snapshot)
    vain = _would_not_start(queue, seen, victims, _asked(seen), kept_paused(plan, seen))
    return tuple(preemption for preemption in preemptions if preemption.beneficiary not in vain)


def _in_turn(
    preemptions: Sequence[Preemption], seen: Observation, awaited: Collection[int | None]
) -> tuple[Preemption, ...]:
    """Those for one job, or one task of an array, of each user, account and QOS; the next follows once it has started.

    While no GPU is free, Slurm does not say which of them their limits would still let start. Those whose victims
    leave as much of the same limits need no turn.
    """
    waiting = (seen.jobs[job_id] for job_id in awaited if job_id is not None and job_id in seen.jobs)
    turn = {limits_of(record): record.job_id for record in waiting if record.state == "PENDING"}
    going: defaultdict[int, list[int]] = defaultdict(list)
    for one in preemptions:
        if one.beneficiary is not None:
            going[one.beneficiary].append(one.job_id)
    chosen: set[int] = set()
    for job_id, victims in going.items():
        record = seen.jobs[job_id]
        if _leave_enough(record, [seen.jobs[n] for n in victims]):
            chosen.update(victims)
        elif turn.setdefault(limits_of(record), job_id) != job_id:
            continue
        elif record.array_tasks == 1:
            chosen.update(victims)
        elif job_id not in awaited:
            chosen |= _for_one_task(record, victims, seen)
    return tuple(one for one in preemptions if one.beneficiary is None or one.job_id in chosen)


def _leave_enough(record: SlurmJob, victims: Sequence[SlurmJob]) -> bool:
    """Whether they leave as much, of the limits that the job uses, as it needs at most if it starts in their place."""
    starts = min(record.array_tasks, len(victims))
    alike = [one for one in victims if (limits_of(one), one.partition) == (limits_of(record), record.partition)]
    return len(alike) == len(victims) and all(
        sum(map(amount, victims)) >= starts * amount(record) for amount in _LIMITED
    )


def _for_one_task(record: SlurmJob, victims: Sequence[int], seen: Observation) -> frozenset[int]:
    """The first victims with which one task of the array could start; they are in the order of its tasks."""
    for count in range(1, len(victims)):
        gone = frozenset(victims[:count])
        if fits(record, free_once_gone(seen.nodes, seen.snapshot.running, seen.jobs, gone)):
            return gone
    return frozenset(victims)


def requeues_in_vain(
    plan: Plan,
    queue: Sequence[int],
    seen: Observation,
    victims: Mapping[int, AbstractSet[int]],
    factors: Mapping[int, int],
    ready: Mapping[int, AbstractSet[int]] = MappingProxyType({}),
) -> frozenset[int]:
    """The beneficiaries that would not start if their victims left now.

    `queue` are the pending jobs as the plan orders them (`on_places`), `factors` the pass's new site factors.

    `ready` maps beneficiaries to the victims that do leave now. These beneficiaries must also start if all other
    preempted jobs are still there.

    Slurm updates the age of a job when its site factor is written, that of others every `PriorityCalcPeriod`. Until
    then jobs of nearly equal priority may not be in the plan's order, so a beneficiary must start in both orders.
    """
    if not victims:
        return frozenset()
    actual = by_priority(seen, factors)
    asked, paused = _asked(seen), kept_paused(plan, seen)
    vain = _would_not_start(queue, seen, victims, asked, paused)
    vain |= _would_not_start(actual, seen, victims, asked, paused)
    gone = asked & {job.job_id for job in seen.snapshot.running if job.state is JobState.COMPLETING}
    now = {job_id: going for job_id, going in ready.items() if job_id not in vain}
    if gone.union(*now.values()) != asked:
        vain |= _would_not_start(actual, seen, now, gone, paused)
    return vain


def _asked(seen: Observation) -> frozenset[int]:
    """Running jobs that have been asked to leave."""
    return frozenset(job.job_id for job in seen.snapshot.running if job.asked_to_leave)


def _would_not_start(
    in_order: Iterable[int],
    seen: Observation,
    victims: Mapping[int, AbstractSet[int]],
    leaving: frozenset[int],
    paused: AbstractSet[int],
) -> frozenset[int]:
    """The beneficiaries that would not start if their victims and `leaving` left and Slurm scheduled in this order.

    None of the `paused` jobs starts, whatever its priority.

    Victims of beneficiaries that are earlier in this order, and would start, count as gone, too. A plan considers only
    the jobs that are modelled. Slurm may give the freed GPUs to any job ahead in its queue: a component of a
    heterogeneous job, a job of a partition that is not steered, or one submitted after the victims were signalled. It
    may also keep them for a larger job ahead, whose planned start must not be delayed. And the beneficiary may lack
    CPUs or memory.
    """
    order = [job_id for job_id in in_order if job_id not in paused]
    place = {job_id: at for at, job_id in enumerate(order)}
    turns = Turns(place, seen.cluster)
    able = (record for job_id, record in seen.jobs.items() if job_id not in paused)
    waiting = [record for record in able if may_take_gpus(record, seen.snapshot.now_s)]
    vain, gone = set(paused & victims.keys()), leaving
    for job_id in sorted(victims.keys() - vain, key=lambda job_id: place.get(job_id, -1)):
        record = seen.jobs[job_id]
        free = free_once_gone(seen.nodes, seen.snapshot.running, seen.jobs, gone | victims[job_id])
        first = [other for other in waiting if other.job_id != job_id and turns.may_be_first(other, record)]
        allocate(sorted(first, key=lambda other: place.get(other.job_id, -1)), free)
        if fits(record, free):
            gone |= victims[job_id]
        else:
            vain.add(job_id)
    for partition in {seen.jobs[job_id].partition for job_id in victims}:
        own = {job_id for job_id in victims if seen.jobs[job_id].partition == partition}
        queue = turns.queue([seen.jobs[job_id] for job_id in order], [seen.jobs[job_id] for job_id in own])
        last = max((at for at, job_id in enumerate(queue) if job_id in own), default=-1)
        looked_at = queue[: min(last + 1, REPLAYED)]
        vain |= own.intersection(looked_at) - started_once_gone(
            seen.snapshot, looked_at, leaving.union(*(victims[job_id] for job_id in own))
        )
    return frozenset(vain)


def heirs(
    plan: Plan,
    queue: Sequence[int],
    seen: Observation,
    victims: Mapping[int, AbstractSet[int]],
    vain: Container[int],
    factors: Mapping[int, int],
) -> dict[int, int | None]:
    """For each beneficiary that would no longer start, the job that would start in its place, or None.

    Only the first of the same owner's jobs that the plan now puts before the beneficiary, and that is no other's heir,
    is considered: the plan prefers it, so the victims may leave for it as well. Dropping the preemption instead would
    make them save again. `queue` and `factors` are as in `requeues_in_vain`.
    """
    jobs = {job.job_id: job for job in seen.snapshot.jobs}
    passed_on: dict[int, AbstractSet[int]] = {}
    found: dict[int, int | None] = {}
    for job_id in (job_id for job_id in victims if job_id in vain):
        own = jobs[job_id]
        before = queue[: queue.index(job_id)] if job_id in queue else ()
        alike = (
            job
            for job in map(jobs.__getitem__, before)
            if (job.user, job.scope) == (own.user, own.scope) and job.may_displace
        )
        heir = next((job.job_id for job in alike if job.job_id not in victims and job.job_id not in passed_on), None)
        if heir is not None:
            with_heir = {**passed_on, heir: victims[job_id]}
            if not requeues_in_vain(plan, queue, seen, with_heir, factors):
                passed_on = with_heir
        found[job_id] = heir if heir in passed_on else None
    return found


def may_take_gpus(record: SlurmJob, now_s: float) -> bool:
    """Whether the job would take free GPUs or shards at once, as far as Slurm says."""
    asks = record.gpus > 0 or record.shards_per_node > 0
    return asks and record.priority > 0 and may_start(record, now_s)


def interruptions(
    tracker: PreemptionTracker,
    plan: Plan,
    ranked: Sequence[int],
    seen: Observation,
    order: Iterable[SetSiteFactor],
) -> Sequence[Change]:
    """The next step of each preemption whose beneficiary would start, and the plan's stops.

    `ranked` is the `wanted_order`, and `order` has the pass's new site factors. The tracker's pass has begun.
    """
    jobs = {job.job_id: job for job in seen.snapshot.jobs}
    wanted = (*plan.preemptions, *resized_while_running(plan, jobs))
    factors = {change.job_id: change.site_factor for change in order}
    down = frozenset(name for name, node in seen.nodes.items() if node.is_down)
    look = Look(jobs, seen.jobs, seen.progress, seen.preempted, seen.snapshot.now_s, down)
    tracker.serve_in_order(by_priority(seen, factors), look)
    # Its owner may have moved a job out of our reach: no room is made for it any more.
    asked = {job_id: going for job_id, going in tracker.victims.items() if job_id in jobs}
    ready = tracker.ready_for(look.progress, look.now_s)
    ready = {job_id: going for job_id, going in ready.items() if job_id in asked}
    queue = on_places(ranked, seen.snapshot) if asked else ()
    vain = requeues_in_vain(plan, queue, seen, asked, factors, ready)
    in_vain = heirs(plan, queue, seen, asked, vain, factors)
    stopped = dict.fromkeys(stop.job_id for stop in plan.stops)
    steps = tracker.advance(wanted, look, in_vain, stopped.keys())
    # A cancelled job holds its GPUs until it is gone.
    return (*steps, *(CancelJob(n) for n in stopped if jobs[n].state is not JobState.COMPLETING))


def resized_while_running(plan: Plan, jobs: Mapping[int, Job]) -> Iterator[Preemption]:
    """Preemptions of running jobs that should be resized, and leave for that alone; they get it while they wait."""
    leaving = {preemption.job_id for preemption in plan.preemptions}
    for resize in plan.resizes:
        if jobs[resize.job_id].state is JobState.RUNNING and resize.job_id not in leaving:
            yield Preemption(resize.job_id, resize.reason)
