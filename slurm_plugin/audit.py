"""The one way in which steering changes anything: each change goes to Slurm, and as a line into the audit file.

A line says which job, which field, what it was and what it is now, by which policy and rule, and why. Fields have
Slurm's names (`SiteFactor`, `Reservation`, `JobState`, ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from msgspec import Struct

from explsched.errors import ExplschedError
from sched_policy.plan import Plan
from slurm_plugin.audit_file import AuditEntry, AuditTrail, Value
from slurm_plugin.client.changes import (
    NOT_KNOWN,
    AttachReservation,
    CancelJob,
    Change,
    ChangeFailure,
    ClearDependency,
    CreateReservation,
    DelayStart,
    DeleteReservation,
    ExtendReservation,
    JobChange,
    RequeueJob,
    SetAdminComment,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    SignalJob,
    StartAtOnce,
    TargetJob,
)
from slurm_plugin.client.notation import clock
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import SlurmJob, SlurmReservation
from slurm_plugin.observation.standing import leased_job


class Reasons(Struct, frozen=True):
    """Why a pass changes what it changes: the policy's name, its reasons by job, and `otherwise` for all others."""

    policy: str
    order: Mapping[int, str]
    reservations: Mapping[int, str]
    interruptions: Mapping[int, str]
    resizes: Mapping[int, str]
    groups: Mapping[int, str]
    otherwise: str = ""

    @classmethod
    def of(cls, policy: str, plan: Plan, changes: Iterable[Change]) -> Self:
        """The reasons of a plan. Those of the order are made only for jobs whose site factor or start changes."""
        ordered = {change.job_id for change in changes if isinstance(change, SetSiteFactor | DelayStart)}
        interrupted = {stop.job_id: stop.reason for stop in plan.stops}
        interrupted |= {preemption.job_id: preemption.reason for preemption in plan.preemptions}
        return cls(
            policy,
            {score.job_id: score.reason for score in plan.scores if score.job_id in ordered} if ordered else {},
            {reservation.job_id: reservation.reason for reservation in plan.reservations},
            interrupted,
            {resize.job_id: resize.reason for resize in plan.resizes},
            {job_id: group.reason for group in plan.groups for job_id in group.job_ids},
        )

    @classmethod
    def all_for(cls, reason: str) -> Self:
        """For changes outside of a pass, which have one reason: a daemon that stops, an admin's reset."""
        return cls("", {}, {}, {}, {}, {}, reason)


class Before(Struct, frozen=True):
    """What Slurm had when the changes were decided."""

    jobs: Mapping[int, SlurmJob]
    leases: Mapping[str, SlurmReservation]

    @classmethod
    def of(cls, jobs: Mapping[int, SlurmJob], reservations: Iterable[SlurmReservation]) -> Self:
        """From a look at Slurm."""
        return cls(jobs, {lease.name: lease for lease in reservations})


def entries(
    changes: Iterable[Change],
    failures: Iterable[ChangeFailure],
    before: Before,
    reasons: Reasons,
    now_s: float,
) -> list[AuditEntry]:
    """What to write down of a batch that was handed to Slurm, in its order."""
    refused = {failure.change: failure.message for failure in failures}
    found: list[AuditEntry] = []
    for change in changes:
        for job_id, field, old, new, rule, reason in _described(change, before, reasons):
            job = before.jobs.get(job_id) if job_id is not None else None
            user, words = job.user if job else "", refused.get(change, "")
            found.append(AuditEntry(now_s, job_id, field, old, new, reasons.policy, rule, reason, user, words))
    return found


_Described = tuple[int | None, str, Value, Value, str, str]
"""(job, field, before, after, rule, reason)."""


def _described(change: Change, before: Before, reasons: Reasons) -> tuple[_Described, ...]:
    match change:
        case CreateReservation(name, start_s, minutes, nodes):
            told = f"{','.join(nodes)} from {clock(start_s)} for {minutes} min"
            return (_lease(name, "", told, reasons, ""),)
        case ExtendReservation(name, end_s):
            lease = before.leases.get(name)
            why = "its job still waits for its nodes"
            return ((leased_job(name), "LeaseEnd", clock(lease.end_s) if lease else None, clock(end_s), "lease", why),)
        case DeleteReservation(name):
            found = before.leases.get(name)
            told = f"{','.join(found.nodes)} from {clock(found.start_s)} to {clock(found.end_s)}" if found else ""
            return (_lease(name, told, "", reasons, "the plan no longer has this reservation"),)
        case _:
            return tuple(
                (change.job_id, field, old, new, rule, reason or reasons.otherwise)
                for field, old, new, rule, reason in _of_job(change, before.jobs.get(change.job_id), reasons)
            )


def _lease(name: str, old: str, new: str, reasons: Reasons, why: str) -> _Described:
    job_id = leased_job(name)
    return job_id, "Lease", old, new, "lease", reasons.reservations.get(job_id or 0) or reasons.otherwise or why


_OfJob = tuple[str, Value, Value, str, str]


def _of_job(change: JobChange, job: SlurmJob | None, reasons: Reasons) -> tuple[_OfJob, ...]:
    """(field, before, after, rule, reason) of a change of one job; `job` is None if it was not seen before."""
    interrupted = reasons.interruptions.get(change.job_id, "")
    sized, grouped = reasons.resizes.get(change.job_id, ""), reasons.groups.get(change.job_id, "")
    match change:
        case SetSiteFactor(job_id, factor):
            old = job.site_factor if job else None
            is_array = job is not None and job.is_throttled  # written again so that Slurm tests it
            again = "not in force, so written again" if old == factor and not is_array else ""
            return (("SiteFactor", old, factor, "order", again or reasons.order.get(job_id, "")),)
        case AttachReservation(job_id, name):
            why = reasons.reservations.get(job_id, "") if name else "its lease is over"
            return (("Reservation", job.reservation if job else "", name, "lease", why),)
        case SignalJob(_, signal):
            return (("Signal", "", signal, "preemption", interrupted),)
        case RequeueJob(_):
            saved = "its checkpoint is saved, or its grace period is over"
            return (("JobState", job.state if job else "", "PENDING", "preemption", saved),)
        case CancelJob(_):
            return (("JobState", job.state if job else "", "CANCELLED", "stop", interrupted),)
        case StartAtOnce(_):
            why = "it may go on, and its last run is over"
            return (("StartTime", clock(job.eligible_s) if job else None, "now", "requeue delay", why),)
        case DelayStart(job_id, until_s):
            why = reasons.order.get(job_id, "")
            return (("StartTime", clock(job.eligible_s) if job else None, clock(until_s), "rest", why),)
        case SetAdminComment(_, note):
            return (("AdminComment", job.admin_comment if job else "", note, "annotation", interrupted or grouped),)
        case TargetJob(_, nodes, note):
            pinned = ",".join(job.required_nodes) if job else ""
            return (
                ("ReqNodeList", pinned, ",".join(nodes), "group", grouped),
                ("AdminComment", job.admin_comment if job else "", note, "group", grouped),
            )
        case SetGres(_, gres):
            return (("Gres", job.gres_per_node if job else "", gres, "size", sized),)
        case SetNodeCount(_, nodes, tasks, cpus):
            was = f"{job.nodes} nodes, {job.tasks} tasks, {job.cpus} CPUs" if job else ""
            return (("NumNodes", was, f"{nodes} nodes, {tasks} tasks, {cpus} CPUs", "size", sized),)
        case ClearDependency(_):
            return (("Dependency", None, "", "dependency", ""),)


def apply(
    client: SlurmClient, trail: AuditTrail, changes: Sequence[Change], before: Before, reasons: Reasons, now_s: float
) -> tuple[ChangeFailure, ...]:
    """Hand changes to Slurm and write them down. Raises `SlurmError`.

    Slurm may have taken a part of a batch after which it did not answer: so that is written down as refused, too.
    """
    if not changes:
        return ()
    try:
        failures = client.apply(changes)
    except ExplschedError as error:
        lost = [ChangeFailure(change, f"{NOT_KNOWN}{error}") for change in changes]
        trail.write(entries(changes, lost, before, reasons, now_s))
        raise
    trail.write(entries(changes, failures, before, reasons, now_s))
    return failures
