"""Reads the progress files that jobs append to, one JSON object per line; `explsched.spool` says where they are.

The files are written by users' jobs, so they are checked: a file is read only if it is a regular file owned by the
job's user, and no more of it at a time than the limits allow. Files are read incrementally.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import os
import random
import stat
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

from explsched.log import event
from explsched.preemption_record import PREFIX, RecordError
from explsched.preemption_record import read as read_record
from explsched.spool import MOST_BYTES, directories, open_directory
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.progress import (
    CLOCKS_APART_S,
    MAX_LINE_BYTES,
    MAX_RUNS,
    JobProgress,
    clock_skew,
    fold,
)

MAX_BYTES_PER_READ = 1 << 17
"""At a time, and per file and pass; this much malformed text takes some hundredths of a second."""

MAX_BYTES_PER_USER = 1 << 21
"""For all files of a user together, per pass. The rest is read in later passes."""

MAX_BYTES_PER_LOOK = 1 << 25
"""For all users together: it takes some seconds, and a look is given ten."""

MAX_BYTES_PER_WHOLE_LOOK = 1 << 22
"""Of `WholeProgressSpool`, for one file or all: it looks on, so the limit is only for what it takes at a time."""

MALFORMED_COUNTS_BYTES = 16
"""In a look, beside its own bytes: many short malformed lines take as long as so much more of good ones."""

MOST_MALFORMED = 100_000
MOST_FILES = 100_000
"""As many names are listed of a directory. Where there are more, the files of all jobs are tried by name."""

FEW = 64
"""So many jobs' files are tried by name, without a list of the directory, which may have far more."""

MOST_DIRECTORIES = 8
"""Of each user, the first by name: jobs report to the first, and perhaps to a later one if somebody took their name."""

_MISSING = "there is no such directory"
_OF_ONE_FILE = frozenset({
    *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO),
    errno.EWOULDBLOCK,  # its owner has a lease on it
})  # fmt: skip
"""What a user can bring about for a file or directory. Any other error is the file system's, and may pass."""

_LOG = logging.getLogger("explsched.progress")


@dataclass(frozen=True, slots=True)
class _File:
    """What has been read of one file, of user `uid`: the lines since `since_s`.

    `skew_s`: by run, the `clock_skew` of its node. It is read in parts of `MAX_BYTES_PER_READ`, so that a bad one is
    given up soon.
    """

    inode: int
    uid: int
    since_s: float
    offset: int = 0
    progress: JobProgress = field(default_factory=JobProgress)
    skew_s: Mapping[int, float] = field(default_factory=dict)

    def goes_on(self, status: os.stat_result) -> bool:
        """Whether the file is still this one, and has lost nothing of it."""
        return self.inode == status.st_ino and self.offset <= status.st_size

    @property
    def is_given_up(self) -> bool:
        """Whether no more of it is read."""
        return self.offset > MOST_BYTES or self.progress.malformed > MOST_MALFORMED

    def read_on(self, descriptor: int, most: int, now_s: float) -> Self:
        """With the lines of the next `most` bytes."""
        end, read, before = self.offset + most, self, None
        while read is not before and not read.is_given_up:
            length = min(end - read.offset, MAX_BYTES_PER_READ)
            before, read = read, read._plus(os.pread(descriptor, length, read.offset), now_s)
        return read

    def _plus(self, data: bytes, now_s: float) -> Self:
        """With the lines in that. Half a line waits, if it is not too long for a line."""
        complete, newline, _rest = data.rpartition(b"\n")
        taken = len(complete) + 1 if newline else len(data) if len(data) > MAX_LINE_BYTES else 0
        if not taken:
            return self
        lines = data[:taken].removesuffix(b"\n").split(b"\n")
        progress = fold(self.progress, lines, now_s, self.skew_s, self.since_s)
        return replace(self, offset=self.offset + taken, progress=progress)


@dataclass(slots=True)
class _Look:
    """One look at the files of the jobs in `owners` (job id -> uid), in their order.

    `left`: bytes of lines that may still be read, by user and in all; `per_file`: of one file. `cut` are the jobs that
    one of the limits has kept from the end of their file; `fault`: why it is not complete, or "".
    """

    owners: Mapping[int, int]
    submitted_s: Mapping[int, float]
    left: dict[int, int]
    left_in_all: int
    per_file: int
    cut: dict[int, int] = field(default_factory=dict)
    fault: str = ""

    def bytes_left(self, uid: int) -> int:
        """How much may be read of a user's next file."""
        return min(self.per_file, self.left[uid], self.left_in_all)

    def goes_on(self, job_id: int, kept: _File) -> bool:
        """Whether that is of the job that has this id now."""
        return self.owners.get(job_id) == kept.uid and kept.since_s >= self.submitted_s.get(job_id, 0.0)

    def note(self, error: OSError, path: Path | str) -> None:
        """Take in an error in opening or reading one file or directory."""
        if error.errno not in _OF_ONE_FILE:
            self.fault = f"{path}: {error.strerror}"


class ProgressSpool:
    """The spool directory. Keeps what it has read, so that each pass reads only what is new.

    If the file system hangs, fails or is unmounted, passes continue with what was read before; `fault` says why the
    latest reading is not complete.
    """

    def __init__(self, directory: Path, patience_s: float = 10.0) -> None:
        self._spool = directory
        self._reading = BoundedCall(patience_s)
        self._inode: int | None = None  # without its device: that is another one when it is mounted again
        self._files: dict[int, _File] = {}
        self._known: dict[int, JobProgress] = {}
        self.fault = ""

    def without_hung_call(self) -> ProgressSpool:
        """One that has read the same, and goes on although a reading hangs; that one changes it no more."""
        if not self._reading.hangs:
            return self
        another = copy(self)
        another._reading = BoundedCall(self._reading.patience_s)
        another._files = dict(self._files)
        return another

    def read_of(self, jobs: Iterable[SlurmJob], now_s: float) -> dict[int, JobProgress]:
        """The progress of these jobs, without that of former jobs with the same ids."""
        known = tuple(jobs)
        return self.read({job.job_id: job.uid for job in known}, now_s, submitted_s(known))

    def read(
        self, owners: Mapping[int, int], now_s: float, submitted_s: Mapping[int, float] = MappingProxyType({})
    ) -> dict[int, JobProgress]:
        """The progress of the jobs in `owners` (job id -> uid) that have or had a file. Others are forgotten.

        Of a user's jobs the first are read first: what is beyond the limits waits for the next pass. Of jobs in
        `submitted_s` only what was reported since then counts.
        """
        before, self.fault = self.fault, self._read(owners, now_s, submitted_s).fault
        if self.fault not in ("", _MISSING, before):
            event(_LOG, logging.WARNING, "progress not read, the last holds", spool=str(self._spool), why=self.fault)
        known = self._known
        return {job_id: known[job_id] for job_id in sorted(known.keys() & owners.keys())}

    def _read(self, owners: Mapping[int, int], now_s: float, submitted_s: Mapping[int, float]) -> _Look:
        """Read what is new."""
        left = dict.fromkeys(owners.values(), MAX_BYTES_PER_USER)
        look = _Look(dict(owners), submitted_s, left, MAX_BYTES_PER_LOOK, MAX_BYTES_PER_READ)
        return self._bounded(look, partial(self._anew, look, now_s))

    def _bounded(self, look: _Look, call: Callable[[], None]) -> _Look:
        """The look once `call` has made it, or has not in time."""
        try:
            if not self._reading.run(call):
                look.fault = f"the file system has not answered for {self._reading.patience_s:g} s"
        except OSError as error:
            look.fault = error.strerror or str(error)
        return look

    def _anew(self, look: _Look, now_s: float) -> None:
        """Look at all files, in a thread of its own. What was read of former jobs with the same ids is forgotten."""
        gone = {job_id for job_id, kept in self._files.items() if not look.goes_on(job_id, kept)}
        self._files = {job_id: kept for job_id, kept in self._files.items() if job_id not in gone}
        self._known = {job_id: known for job_id, known in self._known.items() if job_id not in gone}
        self._known = self._look(look, now_s)

    def _look(self, look: _Look, now_s: float) -> dict[int, JobProgress]:
        """The progress of the jobs that have a file.

        It is as before of those whose file is gone, as below a missing mount, and where no limit leaves anything.
        """
        try:
            spool = os.open(self._spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if self._inode is not None:
                raise
            look.fault = _MISSING
            return {}
        owners = look.owners
        of_user: defaultdict[int, list[int]] = defaultdict(list)
        for job_id, uid in owners.items():
            of_user[uid].append(job_id)
        try:
            before, self._inode = self._inode, os.fstat(spool).st_ino
            if before not in (None, self._inode):
                look.fault = "it is another directory than before: unmounted, or mounted again?"
            known: dict[int, JobProgress] = {}
            for directory in _directories(spool, of_user.keys(), look):
                jobs = list(owners) if directory.uid is None else of_user[directory.uid]
                for job_id in jobs if len(jobs) <= FEW else directory.listed(jobs):
                    if job_id in known and known[job_id].refused is None:
                        continue
                    found = self._known.get(job_id)
                    if look.bytes_left(owners[job_id]) > 0:
                        found = self._read_one(directory, job_id, owners[job_id], now_s, look)
                    else:
                        look.cut[job_id] = owners[job_id]
                    if found is not None:
                        known[job_id] = found
            return {job_id: kept.progress for job_id, kept in self._files.items()} | known
        finally:
            os.close(spool)

    def _read_one(self, directory: _Directory, job_id: int, uid: int, now_s: float, look: _Look) -> JobProgress | None:
        """The progress with what is new; None if there is no such file."""
        path = self._spool / directory.name / f"{job_id}.jsonl"
        earlier = self._files.get(job_id)
        # O_NONBLOCK: opening a fifo that a user put there must not hang the daemon.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path.name, flags, dir_fd=directory.descriptor)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    return JobProgress(refused=f"{path}: is not a regular file")
                if status.st_uid != uid:
                    return JobProgress(refused=f"{path}: is owned by uid {status.st_uid}, the job by uid {uid}")
                kept = earlier
                if kept is None or not kept.goes_on(status):
                    kept = self._files[job_id] = _File(status.st_ino, uid, look.submitted_s.get(job_id, 0.0))
                rest = status.st_size - kept.offset
                length = 0 if kept.is_given_up else min(rest, look.bytes_left(uid))
                if 0 < length < rest:
                    look.cut[job_id] = uid
                if length:
                    before_end = max(kept.offset, status.st_size - 2 * MAX_LINE_BYTES)
                    if len(kept.skew_s) < MAX_RUNS:
                        tail = os.pread(descriptor, 2 * MAX_LINE_BYTES, before_end)
                        kept = replace(kept, skew_s={**kept.skew_s, **clock_skew(tail, status.st_mtime)})
                    # Our own clock may be behind that of the file server, which knows when the file was written.
                    latest_s = min(max(now_s, status.st_mtime), now_s + CLOCKS_APART_S)
                    before, kept = kept, kept.read_on(descriptor, length, latest_s)
                    self._files[job_id], taken = kept, kept.offset - before.offset
                    malformed = kept.progress.malformed - before.progress.malformed
                    # What is left has no room for a line if none is taken of a file that goes on.
                    used = (taken or (length if job_id in look.cut else 0)) + MALFORMED_COUNTS_BYTES * malformed
                    look.left[uid] -= used
                    look.left_in_all -= used
                if kept.is_given_up:
                    return replace(kept.progress, refused=f"{path}: is too long, or has too many malformed lines")
                return kept.progress
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:  # what was read before holds
            look.note(error, path)
            return JobProgress(refused=f"{path}: {error.strerror}") if earlier is None else earlier.progress


def submitted_s(jobs: Iterable[SlurmJob]) -> dict[int, float]:
    """When these jobs were first submitted, without those of which that is not known."""
    return {job.job_id: first_s for job in jobs if (first_s := _first_submitted_s(job)) is not None}


def _first_submitted_s(job: SlurmJob) -> float | None:
    """Of a requeued job Slurm tells when that was instead; then the record of its preemptions tells.

    If others had requeued it before we did, the record began with a later run.
    """
    if job.restarts == 0:
        return job.submit_s
    if PREFIX not in job.admin_comment:
        return None
    try:
        record = read_record(job.admin_comment, job.submit_s, job.restarts)
    except RecordError:  # `observe` says so
        return None
    is_from_first = bool(record.latest) and record.latest[0].run == record.older
    return record.submitted_s if is_from_first else None


class WholeProgressSpool(ProgressSpool):
    """For a command that looks once, and may wait: each reading goes on to the end of every file."""

    def _read(self, owners: Mapping[int, int], now_s: float, submitted_s: Mapping[int, float]) -> _Look:
        look = _whole_look(dict(owners), submitted_s)
        self._bounded(look, partial(self._anew, look, now_s))
        while look.cut and not look.fault:
            look = _whole_look(look.cut, submitted_s)
            self._bounded(look, partial(self._go_on, look, now_s))
        return look

    def _go_on(self, look: _Look, now_s: float) -> None:
        """Look at the files that have not been read to their ends."""
        found = self._look(look, now_s)  # has of others what was read, and not that they are refused
        self._known = {**self._known, **{job_id: found[job_id] for job_id in look.owners if job_id in found}}


def _whole_look(owners: Mapping[int, int], submitted_s: Mapping[int, float]) -> _Look:
    most = MAX_BYTES_PER_WHOLE_LOOK
    return _Look(owners, submitted_s, dict.fromkeys(owners.values(), most), most, most)


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory with progress files: a user's own, or the spool itself with files of any user (`uid` None)."""

    name: str
    descriptor: int
    uid: int | None

    def listed(self, jobs: Sequence[int]) -> Sequence[int]:
        """Those of these jobs that have a file here; all of them, if there are more names than are listed."""
        with os.scandir(self.descriptor) as entries:
            names = {entry.name for entry in itertools.islice(entries, MOST_FILES + 1)}
        return jobs if len(names) > MOST_FILES else [job_id for job_id in jobs if f"{job_id}.jsonl" in names]


def _directories(spool: int, uids: Container[int], look: _Look) -> Iterator[_Directory]:
    """The directories that may have files of these users, the first few of each. Unreadable ones are skipped."""
    owned: defaultdict[int, list[str]] = defaultdict(list)
    for name, uid in directories(spool):
        if uid in uids:
            owned[uid].append(name)
    # In another order each time: where users write more than a look may read, each of them gets ahead.
    for uid, names in random.sample(list(owned.items()), len(owned)):
        for name in heapq.nsmallest(MOST_DIRECTORIES, names):
            try:
                descriptor = open_directory(name, spool)
            except OSError as error:
                look.note(error, name)
                continue
            try:
                if os.fstat(descriptor).st_uid == uid:
                    yield _Directory(name, descriptor, uid)
            finally:
                os.close(descriptor)
    yield _Directory("", spool, None)
