"""The audit file: one JSON line for each change, written by whoever hands changes to Slurm, rotated by size.

A line says which job, which field, what it was and what it is now, by which policy and rule, and why. Fields have
Slurm's names (`SiteFactor`, `Reservation`, `JobState`, ...).

The file belongs to the daemon's user and its group reads it: it names all users' jobs. A file that cannot be written
keeps nobody from steering; that is logged and counted.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from explsched.errors import ExplschedError
from explsched.log import event
from sched_policy.plan import Plan
from slurm_plugin.client.changes import (
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
from slurm_plugin.client.parse import clock
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import SlurmJob, SlurmReservation
from slurm_plugin.observation.standing import leased_job

Value = str | float | int | None


class AuditEntry(Struct, frozen=True, omit_defaults=True):
    """One change of one field.

    `time_s` is when it was handed to Slurm, in seconds since the epoch. `job` is None for a change of no job, `user`
    its owner. `before` is what the pass had seen, `after` what was asked for. `refused` has Slurm's words if it did
    not take the change; empty if it did.
    """

    time_s: float
    job: int | None
    field: str
    before: Value
    after: Value
    policy: str
    rule: str
    reason: str
    user: str = ""
    refused: str = ""


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
            again = "not in force, so written again" if old == factor else ""
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


_LOG = logging.getLogger("explsched.audit")
_MODE = 0o640
_RECENT = 500
_MIB = 1 << 20


class AuditError(ExplschedError):
    """The audit file cannot be read."""


class AuditTrail:
    """The file at `path`, and `kept` older ones of `max_mib` each beside it: `path.1` is the youngest of those."""

    def __init__(self, path: Path, max_mib: float, kept: int) -> None:
        self.path = path
        self._max_bytes = int(max_mib * _MIB)
        self._kept = kept
        self._fault = ""
        self.faults = 0
        self.recent: deque[AuditEntry] = deque(maxlen=_RECENT)
        """The latest entries, the newest last; also those that could not be written."""

    def write(self, found: Sequence[AuditEntry]) -> None:
        """Append the entries, in one piece.

        A full disk, or a crash, may have cut the last line: it is ended first, so that it takes no other with it.
        """
        self.recent.extend(found)
        if not found:
            return
        lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in found)
        try:
            self._rotate(len(lines))
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            with os.fdopen(descriptor, "a+b", buffering=0) as file:
                self._own(descriptor)
                if (size := os.fstat(descriptor).st_size) and os.pread(descriptor, 1, size - 1) != b"\n":
                    lines = b"\n" + lines
                while lines:  # of which a disk that fills up takes a part, and says so only when it is given the rest
                    lines = lines[file.write(lines) :]
        except OSError as error:
            self.faults += 1
            fault = f"{self.path}: {error.strerror}"
            if fault != self._fault:
                event(_LOG, logging.ERROR, "changes are not in the audit file", why=fault)
            self._fault = fault
        else:
            self._fault = ""

    def _own(self, descriptor: int) -> None:
        """A file that root makes, in a reset, must stay the daemon's, whose directory it is in."""
        os.fchmod(descriptor, _MODE)
        if os.geteuid() == 0:
            parent = self.path.parent.stat()
            os.fchown(descriptor, parent.st_uid, parent.st_gid)

    def _rotate(self, more_bytes: int) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size == 0 or size + more_bytes <= self._max_bytes:
            return
        older = [self.path, *(self._older(number) for number in range(1, self._kept + 1))]
        for young, old in reversed(list(itertools.pairwise(older))):
            with suppress(FileNotFoundError):  # as long as there are fewer than may be kept
                young.replace(old)
        if not self._kept:
            self.path.unlink()

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def apply(
    client: SlurmClient, trail: AuditTrail, changes: Sequence[Change], before: Before, reasons: Reasons, now_s: float
) -> tuple[ChangeFailure, ...]:
    """Hand changes to Slurm and write them down: the one way in which steering changes anything. Raises `SlurmError`.

    Slurm may have taken a part of a batch after which it did not answer: so that is written down as refused, too.
    """
    if not changes:
        return ()
    try:
        failures = client.apply(changes)
    except ExplschedError as error:
        lost = [ChangeFailure(change, f"not known: {error}") for change in changes]
        trail.write(entries(changes, lost, before, reasons, now_s))
        raise
    trail.write(entries(changes, failures, before, reasons, now_s))
    return failures


def read(path: Path, since_s: float = 0.0, jobs: frozenset[int] | None = None) -> Iterator[AuditEntry]:
    """The entries of a file and of the older ones beside it, oldest first. Raises `AuditError`.

    `jobs` limits them to those. A line that was cut, by a full disk or a crash, is left out and logged.
    """
    texts = [(found, text) for found in (*_older(path), path) if (text := _text(found)) is not None]
    for found, text in texts:
        for entry in _decoded(text, found):
            if entry.time_s >= since_s and (jobs is None or entry.job in jobs):
                yield entry


def _older(path: Path) -> list[Path]:
    """The files that were put aside, oldest first. Raises `AuditError`."""
    try:
        there = os.listdir(path.parent)  # noqa: PTH208  names; Path.glob raises for closed directories
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror}") from error
    begin = f"{path.name}."
    numbers = (name.removeprefix(begin) for name in there if name.startswith(begin))
    return [path.with_name(begin + number) for number in sorted(filter(str.isdecimal, numbers), key=int, reverse=True)]


def _text(path: Path, position: int = 0) -> bytes | None:
    """What a file has from `position` on; None if there is none, or no longer. Raises `AuditError`."""
    try:
        with path.open("rb") as file:
            _ = file.seek(position)
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror}") from error


def _decoded(text: bytes, path: Path) -> Iterator[AuditEntry]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield msgspec.json.decode(line, type=AuditEntry)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            event(_LOG, logging.WARNING, "audit line left out", file=str(path), line=number, why=str(error))


class RecentEntries:
    """The latest entries of a file, for those who look again and again: only what has been added is read."""

    def __init__(self, path: Path, for_s: float, most: int) -> None:
        """Entries of the last `for_s` seconds, `most` of them."""
        self._path = path
        self._for_s = for_s
        self._found: deque[AuditEntry] = deque(maxlen=most)
        self._file: tuple[int, int] | None = None
        self._position = 0

    def now(self, now_s: float) -> Sequence[AuditEntry]:
        """The entries, oldest first. Raises `AuditError`."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._found.clear()
            self._file = None
            return self._found
        except OSError as error:
            raise AuditError(f"{self._path}: cannot be read: {error.strerror}") from error
        if self._file != (status.st_dev, status.st_ino) or status.st_size < self._position:
            # The first look, or the file was put aside: begin anew, with the older files.
            self._found.clear()
            self._file, self._position = (status.st_dev, status.st_ino), 0
            for path in _older(self._path):
                self._found.extend(_decoded(_text(path) or b"", path))
        self._read_on()
        while self._found and self._found[0].time_s < now_s - self._for_s:
            self._found.popleft()
        return self._found

    def _read_on(self) -> None:
        added = _text(self._path, self._position) or b""
        whole = added[: added.rfind(b"\n") + 1]
        self._position += len(whole)
        self._found.extend(_decoded(whole, self._path))


def replayed(found: Iterable[AuditEntry], field: str) -> Mapping[int, object]:
    """The last value that a field of each job was given, and that Slurm took."""
    return {entry.job: entry.after for entry in found if entry.field == field and not entry.refused and entry.job}
