"""The record of sweeps: which trainings belonged to them, and which were paused or stopped, and why.

Slurm forgets jobs minutes after their end and does not know why a policy ended one. Users read this record, and so does
a daemon that has just started, because ended trainings help to predict the others. It is `sweeps.jsonl` in the spool,
which, unlike the audit file, every user can read on every host, unless Slurm hides others' jobs; each line is one note.
When a daemon starts, notes of trainings without a new one for `KEPT_S` are dropped, and of each user all but the newest
`MOST_BYTES_OF_USER`, which bounds what whoever submits without end has others keep in memory.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from explsched.atomic_file import replacing
from explsched.log import event
from sched_policy.model import Direction, Exploration, GpuPart, GpuRequest, Job, NodeGpus
from sched_policy.plan import Plan
from slurm_plugin.client.changes import CancelJob, Change, SignalJob
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.daemon_user import hand_over, may_be_daemons, owner_in
from slurm_plugin.observation.gpu_hours import held_gpus
from slurm_plugin.observation.policy_job import Params, exploration_of, is_present
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.standing import Scope, standing_of
from slurm_plugin.observation.trainings import LASTS_S, SeenTraining

NAME = "sweeps.jsonl"
KEPT_S = 90 * 86_400.0
PATIENCE_S = 10.0
MOST_KEPT = 10_000
MOST_BYTES_OF_USER = 8 << 20
OPEN_MODE, PRIVATE_MODE = 0o644, 0o640

_LOG = logging.getLogger("explsched.sweep_record")


class Note(Struct, frozen=True, omit_defaults=True):
    """One line: a training was first seen (`joined`), or seen to hold other GPUs, preempted or stopped, and why.

    `held_gpus` are as in `gpu_hours`; 0 in the lines of a former release. `params` are those of the job's comment,
    which is as public. Those that it reports stay in its reports, where its owner and the daemon find them.
    """

    time_s: float
    what: Literal["joined", "paused", "stopped"]
    job: int
    user: str
    uid: int
    sweep: str
    metric: str = "loss"
    direction: Direction = Direction.MIN
    gpus: int = 1
    submit_s: float = 0.0
    reason: str = ""
    held_gpus: float = 0.0
    params: Params = ()

    @property
    def training(self) -> tuple[int, int, str]:
        """Which training it is about. Its id alone may be that of an earlier one: a new slurmctld counts from 1."""
        return self.job, self.uid, self.sweep


class _Joined(NamedTuple):
    """What was last noted of a job that is there, and in which of its runs; None if it did not run, or not known."""

    sweep: str
    held_gpus: float
    submit_s: float
    run: int | None


class SweepRecord:
    """Writes the record. A spool that hangs or cannot be written does not stop the daemon; it is logged once.

    Notes that could not be written (the latest `MOST_KEPT`) are written once the spool answers.
    """

    def __init__(self, spool: Path, patience_s: float = PATIENCE_S) -> None:
        self._path = spool / NAME
        self._calls = BoundedCall(patience_s)
        self._fault = ""
        self._known: tuple[Note, ...] | None = None
        self._has_begun = False
        self._joined: dict[tuple[int, int], _Joined] = {}  # by the job's id and its owner's uid
        self._unwritten: deque[Note] = deque(maxlen=MOST_KEPT)
        self._taken: list[Note] = []  # by the call that writes them
        self._mode = 0  # of the file, as far as we have seen to it

    def without_hung_call(self) -> SweepRecord:
        """One that knows the same, and goes on although a call hangs; that one changes it no more.

        It writes the notes of a write that hangs, too: their lines are there twice if that comes back after all.
        """
        if not self._calls.hangs:
            return self
        another = copy(self)
        another._calls = BoundedCall(self._calls.patience_s)
        another._unwritten, another._taken = deque((*self._taken, *self._unwritten), MOST_KEPT), []
        return another

    def read(self) -> tuple[Note, ...] | None:
        """The notes that existed when the daemon started; None if the spool does not answer."""
        if self._known is None:
            self._try(self._look)
        return self._known

    def note(
        self,
        jobs: Iterable[Job],
        changes: Iterable[Change],
        plan: Plan,
        records: Mapping[int, SlurmJob],
        now_s: float,
        mode: int = OPEN_MODE,
    ) -> None:
        """Record the trainings that a pass observed, and the changes that it made, in a file of that mode."""
        if not self._has_begun and (found := self.read()) is not None:
            self._has_begun = True
            kept = _recent(found, now_s)
            joined = (note for note in kept if note.what == "joined")
            before = {_job(note): _Joined(note.sweep, note.held_gpus, note.submit_s, None) for note in joined}
            self._joined = before | self._joined
            if found:
                self._try(partial(_trim, self._path, b"".join(map(_line, kept)), mode))
        # Not only those of sweeps: whoever takes a job out of its sweep and back adds no lines.
        there = {(job_id, record.uid) for job_id, record in records.items()}
        self._joined = {key: joined for key, joined in self._joined.items() if key in there}
        trainings = {job.job_id: job for job in jobs if job.exploration and job.exploration.sweep}
        present = [(job, _note("joined", job, records, now_s)) for job in trainings.values() if job.array_tasks == 1]
        fresh = []
        for job, note in present:
            if self._is_news(job, note):
                fresh.append(note)
                run = job.restarts if job.allocation else None
                self._joined[_job(note)] = _Joined(note.sweep, note.held_gpus, note.submit_s, run)
        why = {preemption.job_id: preemption.reason for preemption in plan.preemptions}
        why |= {stop.job_id: stop.reason for stop in plan.stops}
        for change in changes:
            if isinstance(change, CancelJob | SignalJob) and change.job_id in trainings:
                what: Literal["paused", "stopped"] = "stopped" if isinstance(change, CancelJob) else "paused"
                fresh.append(_note(what, trainings[change.job_id], records, now_s, why.get(change.job_id, "")))
        self._unwritten.extend(fresh)
        if self._unwritten or mode != self._mode:
            self._try(partial(self._write, mode))

    def _is_news(self, job: Job, note: Note) -> bool:
        """Whether the training is new, or runs on other GPUs, or in another sweep, than were noted.

        Its owner can change the sweep at any time, so that counts once in each run. A job that was never requeued and
        submitted after what was noted is another, of a slurmctld installed anew.
        """
        known = self._joined.get(_job(note))
        if known is None or (not job.restarts and job.submit_s > known.submit_s):
            return True
        if not job.allocation:
            return False
        return known.held_gpus != note.held_gpus or (known.sweep != note.sweep and known.run != job.restarts)

    def _look(self) -> None:
        self._known = _read(self._path)

    def _write(self, mode: int) -> None:
        """Append the waiting notes. A call that hangs keeps its notes and writes them when it continues."""
        self._taken = taken = [self._unwritten.popleft() for _ in range(len(self._unwritten))]
        try:
            _append(self._path, b"".join(map(_line, taken)), mode)
            self._mode = mode
        except OSError:
            self._unwritten.extendleft(reversed(taken))
            raise
        finally:
            self._taken = []

    def _try(self, call: Callable[[], None]) -> None:
        try:
            fault = "" if self._calls.run(call) else f"has not answered for {self._calls.patience_s:g} s"
        except OSError as error:
            fault = error.strerror or str(error)
        if fault and fault != self._fault:
            event(_LOG, logging.WARNING, "sweeps are not recorded", why=f"{self._path}: {fault}")
        self._fault = fault


def read(spool: Path, patience_s: float = PATIENCE_S) -> tuple[Note, ...]:
    """All notes, oldest first; none if there is no such file of the daemon's or the spool does not answer."""
    return SweepRecord(spool, patience_s).read() or ()


def _read(path: Path) -> tuple[Note, ...]:
    """The newest notes of each user; incomplete and invalid lines are skipped, and those that were written twice."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not may_be_daemons(status.st_uid, path.parent.stat()):
            return ()  # all users can write to the spool
        kept: dict[Note, int] = {}  # with the bytes of each
        of_user: defaultdict[int, deque[Note]] = defaultdict(deque)
        bytes_of_user: defaultdict[int, int] = defaultdict(int)
        for note, size in _notes(file):
            if note not in kept:
                kept[note] = size
                of_user[note.uid].append(note)
                bytes_of_user[note.uid] += size
                while bytes_of_user[note.uid] > MOST_BYTES_OF_USER:
                    bytes_of_user[note.uid] -= kept.pop(of_user[note.uid].popleft())
        return tuple(kept)


def ended_before(
    notes: Iterable[Note], jobs: Iterable[SlurmJob], spool: ProgressSpool, scope: Scope, now_s: float
) -> dict[int, SeenTraining]:
    """The ended trainings of sweeps that still have pending or running ones, in order of their ends.

    `jobs` are those that Slurm lists. A name may be reused for a new sweep after the last has ended, so a training
    counts only if it had not ended for `LASTS_S` when the first of the later ones was submitted.
    """
    present = {job.job_id: job for job in jobs if is_present(job)}
    sweeps: dict[tuple[int, str], list[SlurmJob]] = {}
    for job in present.values():
        if (told := exploration_of(job)) is not None and told.sweep is not None:
            sweeps.setdefault((job.uid, told.sweep), []).append(job)
    joined: dict[int, Note] = {}
    until_s: dict[int, float] = {}
    for note in notes:
        if (note.uid, note.sweep) in sweeps and note.job not in present:
            joined[note.job] = note
            until_s[note.job] = note.time_s
    progress = spool.read({job_id: note.uid for job_id, note in joined.items()}, now_s)
    for job_id, reported in progress.items():
        until_s[job_id] = max([until_s[job_id], *(run.end_s for run in reported.runs)])
    found: dict[int, SeenTraining] = {}
    since_s = {key: min(job.submit_s for job in own) for key, own in sweeps.items()}
    for note in sorted(joined.values(), key=lambda note: (-until_s[note.job], note.job)):
        key = note.uid, note.sweep
        if until_s[note.job] >= since_s[key] - LASTS_S:
            since_s[key] = min(since_s[key], note.submit_s)
            given = Exploration(note.sweep, note.metric, note.direction, params=note.params)
            whose = standing_of(sweeps[key][0], scope, 0).scope
            training = Job(
                note.job,
                GpuRequest(note.gpus),
                note.submit_s,
                user=note.user,
                allocation=(NodeGpus("", int(note.held_gpus)),) if note.held_gpus > note.gpus else (),
                exploration=given,
                scope=whose,
                part=GpuPart(*3 * (note.held_gpus / note.gpus,)) if 0 < note.held_gpus < note.gpus else None,
            )
            found[note.job] = SeenTraining(training, note.uid, until_s[note.job])
    return dict(reversed(found.items()))


def _notes(lines: Iterable[bytes]) -> Iterator[tuple[Note, int]]:
    """Each note, and the length of its line in bytes."""
    for line in lines:
        try:
            yield _DECODER.decode(line), len(line)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            event(_LOG, logging.WARNING, "record of a sweep skipped", why=str(error))


def _recent(notes: tuple[Note, ...], now_s: float) -> list[Note]:
    latest_s: dict[int, float] = {}
    for note in notes:
        latest_s[note.job] = max(note.time_s, latest_s.get(note.job, note.time_s))
    return [note for note in notes if latest_s[note.job] > now_s - KEPT_S]


def _note(
    what: Literal["joined", "paused", "stopped"],
    job: Job,
    records: Mapping[int, SlurmJob],
    now_s: float,
    reason: str = "",
) -> Note:
    exploration = job.exploration
    if exploration is None or exploration.sweep is None:
        raise ValueError(f"job {job.job_id} belongs to no sweep")
    return Note(
        now_s,
        what,
        job.job_id,
        job.user,
        records[job.job_id].uid,
        exploration.sweep,
        exploration.metric,
        exploration.direction,
        job.request.total,
        job.submit_s,
        reason,
        held_gpus(job),
        told.params if (told := exploration_of(records[job.job_id])) else (),
    )


def _job(note: Note) -> tuple[int, int]:
    return note.job, note.uid


def _line(note: Note) -> bytes:
    return msgspec.json.encode(note) + b"\n"


def _append(path: Path, data: bytes, mode: int) -> None:
    """Append all of `data`, on a line of its own: a disk that filled up, or a crash, may have cut the last one."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:  # for the kernel lets nobody, not even root, create somebody else's file in such a directory
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    try:
        status = os.fstat(descriptor)
        if status.st_uid not in (os.geteuid(), owner_in(path.parent)) or status.st_nlink > 1:
            raise PermissionError(1, "belongs to somebody else")
        hand_over(descriptor, path.parent)
        os.fchmod(descriptor, mode)
        if data and status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _trim(path: Path, data: bytes, mode: int) -> None:
    """Write `data`, all that is to be kept, unless the file has no more than that."""
    if path.stat().st_size <= len(data):
        return
    with replacing(path, mode=mode) as file:
        hand_over(file.fileno(), path.parent)
        file.write(data)


_DECODER = msgspec.json.Decoder(Note)
