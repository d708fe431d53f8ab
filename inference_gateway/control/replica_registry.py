"""All replicas of a gateway. Every change of a replica is written to the event log.

At start the replicas are those that Slurm has; the state file only adds what Slurm cannot know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference_gateway.control.moves import ClassifiedReplicas, Moves
from inference_gateway.control.replica import (
    ACTIVE,
    COMING,
    LOST_AFTER_S,
    OF_REMOVED,
    Phase,
    Replica,
    ReplicaObservation,
    step,
)
from inference_gateway.control.service import ServiceControl
from inference_gateway.control.state import EventLog
from inference_gateway.model import ServerState
from inference_gateway.replicas.submission import new_name, parse_tag
from slurm_plugin.client.records import SlurmJob

_REMOVED, _BACK = "its service was removed", "its service is there again"


class ReplicaRegistry:
    """The replicas by name. Failed starts and start times are passed on to the replica's service."""

    def __init__(self, services: Mapping[str, ServiceControl], replicas: Sequence[Replica], events: EventLog) -> None:
        self._services = services
        self._replicas = {replica.name: replica for replica in replicas}
        self._events = events

    def all(self) -> tuple[Replica, ...]:
        """All replicas."""
        return tuple(self._replicas.values())

    def names(self) -> frozenset[str]:
        """The names of all replicas."""
        return frozenset(self._replicas)

    def by_service(self) -> dict[str, list[Replica]]:
        """The replicas of each configured service."""
        found: dict[str, list[Replica]] = {name: [] for name in self._services}
        for replica in self._replicas.values():
            if replica.service in found:
                found[replica.service].append(replica)
        return found

    def ended_at(self, now_s: float) -> list[int]:
        """The jobs to cancel: those of the replicas that entered `ENDING` at `now_s`."""
        ending = (replica for replica in self._replicas.values() if replica.phase is Phase.ENDING)
        return [replica.job_id for replica in ending if replica.since_s == now_s and replica.job_id is not None]

    def join(self, replicas: Sequence[Replica]) -> None:
        """Add replicas that Slurm has but that were taken for lost, because Slurm's answer came too late."""
        for replica in replicas:
            self._replicas[replica.name] = replica
            self._events.note("adopted", replica.service, replica=replica.name, job=replica.job_id)

    def submitted(self, name: str, job_id: int | None) -> None:
        """Record that Slurm has accepted the job."""
        if name in self._replicas:
            self._replicas[name] = replace(self._replicas[name], job_id=job_id)
            self._events.note("submitted", self._replicas[name].service, replica=name, job=job_id)

    def refused(self, name: str, why: str, now_s: float, *, by_slurm: bool = True) -> None:
        """Remove a replica whose job Slurm refused or, if not `by_slurm`, whose files could not be written."""
        replica = self._replicas.pop(name, None)
        if replica is None:
            return
        if service := self._services.get(replica.service):
            service.refused(replica.asked_s, now_s, by_slurm=by_slurm)
        what = "submission refused" if by_slurm else "files not written"
        self._events.note(what, replica.service, replica=name, reason=why)

    def step(self, replica: Replica, seen: ReplicaObservation, now_s: float) -> None:
        """Advance a replica by what has just been observed of it."""
        service = self._services.get(replica.service)
        if service is None:
            replica = self._without_service(replica, now_s)
        elif replica.phase is Phase.DRAINING and replica.reason == _REMOVED:
            # The slip in the services file is mended, and its last requests are still open.
            replica = replace(replica, phase=Phase.SERVING, since_s=now_s, reason="")
            self._events.note("serving", replica.service, replica=replica.name, job=replica.job_id, reason=_BACK)
        done = step(replica, seen, service.limits if service else OF_REMOVED, now_s)
        if done.replica is None:
            self._replicas.pop(replica.name, None)
        else:
            self._replicas[replica.name] = done.replica
        if done.event:
            job_id = replica.job_id if done.replica is None else done.replica.job_id
            after_s = None if done.served_after_s is None else round(done.served_after_s, 1)
            reason = done.reason or None
            self._events.note(
                done.event, replica.service, replica=replica.name, job=job_id, reason=reason, after_s=after_s
            )
        if service and service.learn(replica, done, now_s):
            why = f"{service.attempts.failures} starts failed in a row; `sexplsched gateway scale` tries again"
            self._events.note("given up", service.name, reason=why)

    def move(
        self, service: ServiceControl, found: ClassifiedReplicas, moves: Moves, why: str, now_s: float
    ) -> list[Replica]:
        """Record the moves of a service; returns the new replicas, which are to be submitted."""
        baseline = sum(not replica.burst for replica in (*found.serving, *found.coming))
        new: list[Replica] = []
        for number in range(baseline, baseline + moves.start):
            name, burst = new_name(service.name), number >= max(1, service.minimum)
            asked = Replica(service.name, name, service.generation, Phase.SUBMITTING, now_s, now_s, burst=burst)
            self._replicas[name] = asked
            self._events.note("start", service.name, replica=name, reason=why, burst=burst or None)
            new.append(asked)
        for replica, reason in moves.cancel:
            self._end(replica, f"{reason}: {why}", now_s)
        for replica, reason in moves.drain:
            is_well = replica.sick_s is None and replica.failing_s is None
            if replica in found.serving and is_well:  # until it was not needed any more
                service.proved(replica.asked_s)
            self._replicas[replica.name] = replica.to(Phase.DRAINING, now_s, reason)
            reasons = f"{reason}: {why}"
            self._events.note("draining", service.name, replica=replica.name, job=replica.job_id, reason=reasons)
        return new

    def _without_service(self, replica: Replica, now_s: float) -> Replica:
        """A replica of a service that has been removed: one that serves finishes its requests."""
        if replica.phase in COMING:
            return self._end(replica, _REMOVED, now_s)
        if replica.phase is not Phase.SERVING:
            return replica
        self._events.note("draining", replica.service, replica=replica.name, job=replica.job_id, reason=_REMOVED)
        return replica.to(Phase.DRAINING, now_s, _REMOVED)

    def _end(self, replica: Replica, reason: str, now_s: float) -> Replica:
        ending = replica.to(Phase.ENDING, now_s, reason)
        self._replicas[replica.name] = ending
        self._events.note("cancelled", replica.service, replica=replica.name, job=replica.job_id, reason=reason)
        return ending


def adopted(
    jobs: Mapping[str, SlurmJob], remembered: Sequence[Replica], servers: Sequence[ServerState], now_s: float
) -> tuple[Replica, ...]:
    """The replicas of the jobs that carry the gateway's tag.

    A job that is not `remembered` is adopted in the state that Slurm shows; it is serving if the data plane sends it
    requests. A remembered replica without a job is gone, unless it was submitted so recently that Slurm may not list it
    yet: it is kept so that it is not submitted twice.
    """
    known = {replica.name: replica for replica in remembered}
    serving = {server.name: server for server in servers if server.state in ("up", "down")}
    found: list[Replica] = []
    for name, job in jobs.items():
        tag = parse_tag(job.comment)
        if tag is None or job.state not in ACTIVE:
            continue
        replica = known.get(name)
        if replica is None or replica.phase is Phase.SUBMITTING:
            fresh = Replica(tag.service, name, tag.generation, Phase.PENDING, now_s, job.submit_s, job_id=job.job_id)
            replica = replace(fresh, burst=replica.burst) if replica else fresh
            server = serving.get(name)
            if server is not None and job.state == "RUNNING":
                served = replace(replica, host=server.host, port=server.port, restarts=job.restarts)
                replica = served.to(Phase.SERVING, now_s)
        found.append(replica)
    fresh_submissions = [
        replica
        for replica in remembered
        if replica.phase is Phase.SUBMITTING and replica.name not in jobs and now_s - replica.asked_s < LOST_AFTER_S
    ]
    return (*found, *fresh_submissions)
