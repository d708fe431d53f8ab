"""The life cycle of a replica, from submission to its end: a state machine without I/O.

    SUBMITTING -> PENDING -> STARTING -> SERVING -> DRAINING -> ENDING -> gone
                                  (any phase) -> ENDING, or gone when its job is over

Its inputs come from Slurm (the job), the job itself (its registration), HTTP (readiness) and HAProxy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from inference_gateway.replicas.reports import Registration
from slurm_plugin.client.records import SlurmJob


class Phase(StrEnum):
    """The phase of a replica's life cycle."""

    SUBMITTING = "submitting"
    """sbatch is running, or its answer was lost."""
    PENDING = "pending"
    STARTING = "starting"
    """Its job runs but does not serve yet."""
    SERVING = "serving"
    DRAINING = "draining"
    """Takes no new requests and finishes those it has."""
    ENDING = "ending"
    """Its job has been cancelled; Slurm still lists it."""


COMING = frozenset({Phase.SUBMITTING, Phase.PENDING, Phase.STARTING})
LIVE = COMING | {Phase.SERVING}


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as the control plane knows it. Times are seconds since the epoch; `since_s` is when `phase` began.

    `asked_s` is the time of submission, or of the last requeue; `ends_s` is when its time limit ends it (None if
    unknown or unlimited). `burst` replicas are those above the service's minimum. `reason` says why it leaves. `sick_s`
    is since when the data plane has seen it down, `failing_s` since when it has passed no health check.
    """

    service: str
    name: str
    generation: str
    phase: Phase
    since_s: float
    asked_s: float
    burst: bool = False
    job_id: int | None = None
    restarts: int = 0
    host: str = ""
    port: int = 0
    limit_s: float | None = None
    ends_s: float | None = None
    sick_s: float | None = None
    failing_s: float | None = None
    reason: str = ""

    def to(self, phase: Phase, now_s: float, reason: str = "") -> Replica:
        """The same replica in another phase."""
        return replace(self, phase=phase, since_s=now_s, reason=reason or self.reason)

    @property
    def replaceable(self) -> bool:
        """Whether it serves only until a successor does."""
        return self.phase is Phase.SERVING and bool(self.reason)

    def proved_s(self, now_s: float) -> float | None:
        """Since when it has proved able to serve, if it has: at its age of `YOUNG_S`, unless it fails its checks."""
        able = self.phase is Phase.SERVING and self.sick_s is None and self.failing_s is None
        return self.since_s + YOUNG_S if able and now_s - self.since_s >= YOUNG_S else None


_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED"})
_SUSPENDED = "SUSPENDED"
_RUNNING = frozenset({"RUNNING", "CONFIGURING", _SUSPENDED, "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})

_HELD = {
    "launch failed requeued held": "Slurm failed to launch its job, as when a prolog fails, and holds it",
    "user env retrieval failed requeued held": "Slurm failed to read its user's environment, and holds its job",
    "JobHoldMaxRequeue|launch failure limit exceeded requeued held": "Slurm requeued its job too often, and holds it",
    ".*Reservation .* (?:was deleted|is invalid)": "the reservation of its job was deleted, and Slurm holds it",
}
"""Slurm's reasons, as patterns, for jobs that it would never start again by itself."""

ACTIVE = _WAITING | _RUNNING
"""States of jobs that run or will run."""

LOST_AFTER_S = 60.0
"""A submission whose answer was lost counts as refused if Slurm does not list its job after this time."""

AGAIN_S = 60.0
"""A job that Slurm still lists this long after it was cancelled is cancelled again."""

YOUNG_S = 60.0
"""A replica that dies within this time of serving counts as a failed start, because its successors may do the same; one
that serves for longer ends a row of failures."""


ASKED_S = 30.0
"""No start takes too long before a new control plane has asked for this time: it may have become ready unseen."""


@dataclass(frozen=True, slots=True)
class ReplicaObservation:
    """What has been observed of one replica.

    `job` is None if Slurm does not list it, which is meaningful only if the listing began (`listed_s`) after the job
    was known. `answered`: its health path answered 200. `server_up`, `passed` (its last health check) and `in_flight`
    come from the data plane, None while it does not have the replica; `plane_answers` is False while the data plane
    does not answer.
    """

    job: SlurmJob | None
    listed_s: float
    registration: Registration | None = None
    leaving: bool = False
    answered: bool = False
    server_up: bool | None = None
    passed: bool | None = None
    in_flight: int | None = None
    plane_answers: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a replica may take to start, to drain, and stay down, in seconds.

    `adopted_s`: when this control plane has begun to ask replicas whether they are ready, in seconds since the epoch.
    """

    start_limit_s: float
    drain_deadline_s: float
    down_limit_s: float
    adopted_s: float = 0.0


OF_REMOVED = Limits(start_limit_s=1.0, drain_deadline_s=300.0, down_limit_s=1.0)
"""For replicas of a service that has been removed from the configuration: its own limits are not known any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next state of a replica (None: gone), and what to write to the event log.

    The job of a replica that has just entered `ENDING` is to be cancelled. `started`: its job waited, and runs now.
    `failed`: a start has failed. `refused`: Slurm has not taken its submission. `served_after_s`: it has just begun to
    serve, this long after its submission.
    """

    replica: Replica | None
    event: str = ""
    reason: str = ""
    started: bool = False
    failed: bool = False
    refused: bool = False
    served_after_s: float | None = None


def step(replica: Replica, seen: ReplicaObservation, limits: Limits, now_s: float) -> Step:
    """The replica's next state."""
    if replica.phase is Phase.SUBMITTING and seen.job is None:
        if min(now_s, seen.listed_s) - replica.asked_s > LOST_AFTER_S:
            why = "Slurm has no record of the submission"
            if replica.job_id is None:
                return Step(None, "lost", why, refused=True)  # a busy slurmctld proves nothing of the service
            why = f"Slurm does not list job {replica.job_id} with the name and comment of its submission"
            return Step(replica.to(Phase.ENDING, now_s, why), "lost", why, failed=True)
        return Step(replica)
    job = seen.job
    if job is None:
        known = seen.listed_s > max(replica.since_s, replica.asked_s)
        return _over(replica, "Slurm no longer knows the job", now_s) if known else Step(replica)
    if (replica.job_id, replica.limit_s) != (job.job_id, job.time_limit_s):
        replica = replace(replica, job_id=job.job_id, limit_s=job.time_limit_s)
    if job.state == "COMPLETING" and job.restarts > replica.restarts:
        # Slurm counts the next run as soon as it requeues a job, but cleans up this one before it shows it as pending.
        return _waiting(replica, msgspec.structs.replace(job, restarts=replica.restarts), now_s)
    if job.state in _WAITING:
        return _waiting(replica, job, now_s)
    if job.state not in _RUNNING:
        if job.preempted and replica.phase in LIVE:  # Slurm wanted its place, as it may before a requeue
            return Step(None, "preempted", f"job {job.state}")
        return _over(replica, f"job {job.state}{_because(job.reason)}", now_s)
    return _running(replica, job, seen, limits, now_s)


def _because(reason: str) -> str:
    return "" if reason in ("", "None") else f" ({reason})"


def _over(replica: Replica, why: str, now_s: float) -> Step:
    if replica.phase in (Phase.DRAINING, Phase.ENDING):
        return Step(None, "ended", replica.reason or why)
    failed = replica.phase in COMING or now_s - replica.since_s < YOUNG_S
    return Step(None, "failed" if failed else "died", why, failed=failed)


def _waiting(replica: Replica, job: SlurmJob, now_s: float) -> Step:
    if replica.phase in LIVE and (why := _held(job)):
        return Step(replica.to(Phase.ENDING, now_s, why), "failed", why, failed=True)
    if replica.phase in (Phase.SUBMITTING, Phase.PENDING):
        same = replica.phase is Phase.PENDING
        return Step(replace(replica, restarts=job.restarts) if same else replica.to(Phase.PENDING, now_s))
    if replica.phase is Phase.DRAINING:
        return Step(replica.to(Phase.ENDING, now_s))
    if replica.phase is Phase.ENDING:
        return _ending(replica, now_s)
    return Step(_again(replica, job, now_s).to(Phase.PENDING, now_s), "requeued", f"by Slurm{_because(job.reason)}")


def _held(job: SlurmJob) -> str:
    """Why Slurm holds the job for good; empty if it does not."""
    reason = job.reason.replace("_", " ")
    return next((why for pattern, why in _HELD.items() if re.fullmatch(pattern, reason)), "")


def _again(replica: Replica, job: SlurmJob, now_s: float) -> Replica:
    """A replica whose job was requeued: how long its last run took is no part of how long the next start takes."""
    known = replace(replica, asked_s=now_s, restarts=job.restarts, host="", port=0)
    return replace(known, ends_s=None, sick_s=None, failing_s=None)


def _running(replica: Replica, job: SlurmJob, seen: ReplicaObservation, limits: Limits, now_s: float) -> Step:
    if job.start_s is not None and job.time_limit_s is not None:
        ends_s = job.start_s + job.suspended_s + job.time_limit_s
        replica = replica if replica.ends_s == ends_s else replace(replica, ends_s=ends_s)
    if replica.phase in (Phase.SUBMITTING, Phase.PENDING):
        return Step(replace(replica, restarts=job.restarts).to(Phase.STARTING, now_s), "started", started=True)
    if replica.restarts != job.restarts and replica.phase in LIVE:  # requeued and running again since the last listing
        return Step(_again(replica, job, now_s).to(Phase.STARTING, now_s), "requeued")
    if replica.phase is Phase.STARTING:
        return _starting(replica, job, seen, limits, now_s)
    if replica.phase is Phase.SERVING:
        return _serving(replica, job, seen, limits, now_s)
    if replica.phase is Phase.DRAINING:
        return _draining(replica, seen, limits, now_s)
    return _ending(replica, now_s)


def _starting(replica: Replica, job: SlurmJob, seen: ReplicaObservation, limits: Limits, now_s: float) -> Step:
    registered = seen.registration
    if registered and (registered.job_id, registered.restarts) == (job.job_id, job.restarts):
        replica = replace(replica, host=registered.host, port=registered.port)
    if replica.port and seen.answered:
        return Step(replica.to(Phase.SERVING, now_s), "serving", served_after_s=now_s - replica.asked_s)
    limit_s = limits.start_limit_s
    late_s = max(replica.since_s + job.suspended_s + limit_s, limits.adopted_s + min(limit_s, ASKED_S))
    if now_s > late_s and job.state != _SUSPENDED:
        why = f"not ready {limit_s:g} s after its job started"
        return Step(replica.to(Phase.ENDING, now_s, why), "failed", why, failed=True)
    return Step(replica)


def _serving(replica: Replica, job: SlurmJob, seen: ReplicaObservation, limits: Limits, now_s: float) -> Step:
    if seen.leaving:
        why = "its job received the signal to end"
        return Step(replica.to(Phase.DRAINING, now_s, why), "draining", why)
    if seen.passed is not None:
        failing_s = None if seen.passed else replica.failing_s or now_s
        replica = replace(replica, failing_s=failing_s, reason=replica.reason if failing_s else "")
    if seen.server_up is None or seen.server_up:
        return _kept_in(replace(replica, sick_s=None), limits, now_s)
    if replica.sick_s is None:
        return Step(replace(replica, sick_s=now_s))
    if now_s - replica.sick_s > limits.down_limit_s:
        why = f"does not answer its health checks for {limits.down_limit_s:g} s"
        if job.state == _SUSPENDED:
            why += ": Slurm has suspended its job"
            return Step(replica.to(Phase.ENDING, now_s, why), "died", why)
        return Step(replica.to(Phase.ENDING, now_s, why), "failed", why, failed=True)
    return Step(replica)


def _kept_in(replica: Replica, limits: Limits, now_s: float) -> Step:
    """The data plane sends requests also to replicas that fail their checks, if there are no better ones.

    Such a one may be busy, or hang for good, so it is not cancelled before it has a successor.
    """
    if replica.failing_s is None or replica.replaceable or now_s - replica.failing_s <= limits.down_limit_s:
        return Step(replica)
    why = f"passes no health check for {limits.down_limit_s:g} s"
    return Step(replace(replica, reason=why), "failing", why)


def _draining(replica: Replica, seen: ReplicaObservation, limits: Limits, now_s: float) -> Step:
    if seen.plane_answers and not seen.in_flight and now_s != replica.since_s:  # the clock may be set back
        return Step(replica.to(Phase.ENDING, now_s), "drained", replica.reason)
    if now_s - replica.since_s > limits.drain_deadline_s:
        why = f"{seen.in_flight} requests not finished within {limits.drain_deadline_s:g} s"
        return Step(replica.to(Phase.ENDING, now_s), "cut", why)
    return Step(replica)


def _ending(replica: Replica, now_s: float) -> Step:
    if now_s - replica.since_s > AGAIN_S:
        return Step(replica.to(Phase.ENDING, now_s), "cancelled again", replica.reason)
    return Step(replica)
