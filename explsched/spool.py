"""The paths of progress files, and how a job appends to its own file without ever harming the training.

`<spool>/<uid>/<job id>.jsonl`. The spool has mode 3777 and the daemon's group. A directory that a user makes in it gets
that group, too, so that mode 0750 gives access to its owner and the daemon only; this needs no root. A directory is a
user's by its owner, not by its name: if another user has taken the name, `<uid>-<random>` is made instead.

In a spool without the set-group-ID bit (mode 1777, as in former releases) directories would not get the group. There
the files are in the spool itself, and every user can read them, also once the bit is set: a job whose file is there
goes on in it.
"""

from __future__ import annotations

import _thread
import errno
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from explsched.errors import warn

DEFAULT_SPOOL = "/var/spool/explsched/progress"
MODE = 0o3777
"""Of the spool: everybody may make a directory, which gets the spool's group, and remove none of others."""

DIRECTORY_MODE = 0o750
FILE_MODE = 0o644
MOST_BYTES = 1 << 26
"""Longest progress file: what a job writes beyond is neither written by us nor read by the daemon."""

THIN_FROM_BYTES = 1 << 20
_THIN_S = 10.0
"""Where a file is long, a process reports the same metrics no more often than this; the last with the next event."""

PATIENCE_S = 2.0
"""A training waits so long for its spool, and no longer: a network file system may hang for hours."""

# O_NOFOLLOW and the owner is checked, because others may have put something there. O_NONBLOCK: it may be a fifo.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

RETRY_S, _LONGEST_RETRY_S = 30.0, 600.0
_OF_USER = re.compile(r"[0-9]+(?:-[0-9a-f]{8})?\Z", re.ASCII)


def directories(spool: int, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Users' directories below an open spool, of such names, and the uids of their owners. Raises OSError."""
    with os.scandir(spool) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and _OF_USER.match(entry.name):
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # removed meanwhile
                    continue
                if stat.S_ISDIR(status.st_mode):
                    yield entry.name, status.st_uid


def open_directory(path: str | Path, above: int | None = None) -> int:
    """A descriptor of a directory that is no symbolic link. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)


def _owned(spool: int, uid: int) -> list[str]:
    """The user's directories, sorted. Others are not looked at, as far as that goes: there may be very many."""
    status = os.stat(str(uid), dir_fd=spool, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == uid:
        return [str(uid)]
    return sorted(name for name, owner in directories(spool, f"{uid}-") if owner == uid)


class Writer:
    """Appends to a file of this process's user. A failure is reported once; later reports try again.

    `spool`: the file is in the user's directory below it; None: `path` is the file itself.
    """

    def __init__(self, path: Path, spool: Path | None = None) -> None:
        self._path = path
        self._spool = spool
        self._name = ""
        self._is_broken = False
        self._retry_s = RETRY_S
        self._next_try_s = 0.0
        self._written_s: dict[str, float] = {}
        self._withheld: dict[str, Sequence[bytes]] = {}
        self._told: set[str] = set()
        self._busy = _thread.allocate_lock()
        self._hangs = False

    def append(self, lines: Sequence[bytes], about: str | None = None) -> None:
        """Append lines, each in one write: with O_APPEND those of several processes never mix.

        Args:
            lines: each with its line break.
            about: what they are about, such as the metrics' names; of each there are fewer once the file is long. None:
                events and reports of the last step, which are few and important, and are written also then and where
                writing has failed before. What was left out last of each precedes them.

        """
        now_s = time.monotonic()
        if about is not None and now_s < self._next_try_s:
            return
        if not self._busy.acquire(timeout=0.0 if self._hangs else PATIENCE_S):
            return
        done = _thread.allocate_lock()
        done.acquire()
        try:
            # A bare thread: `threading` takes locks that a signal handler could find held when it reports.
            _thread.start_new_thread(self._attempt, (lines, about, now_s, done))
        except RuntimeError as error:  # the limit of threads is reached, or Python is shutting down
            self._busy.release()
            self._tell(str(error))
            return
        if not done.acquire(timeout=PATIENCE_S):
            self._hangs = True  # until that write returns, others are dropped
            self._tell(f"the file system has not answered for {PATIENCE_S:g} s")

    def written(self) -> bytes:
        """The content of the file; empty if it cannot be read in time."""
        found: list[bytes] = []
        done = _thread.allocate_lock()
        done.acquire()
        try:
            _thread.start_new_thread(self._read, (found, done))
        except RuntimeError as error:  # as above
            self._tell(str(error))
            return b""
        return found[0] if done.acquire(timeout=PATIENCE_S) and found else b""

    def _read(self, found: list[bytes], done: _thread.LockType) -> None:
        try:
            with os.fdopen(self._open(_READ), "rb") as file:
                if claim(file.fileno()):
                    found.append(file.read(MOST_BYTES))
        except FileNotFoundError:
            pass  # nothing has been reported yet, as on the second node of a job whose nodes have a spool each
        except OSError as error:
            self._tell(error.strerror or str(error))
        finally:
            done.release()

    def _attempt(self, lines: Sequence[bytes], about: str | None, now_s: float, done: _thread.LockType) -> None:
        try:
            self._write(lines, about, now_s)
            self._retry_s, self._next_try_s = RETRY_S, 0.0
        except OSError as error:
            self._next_try_s = now_s + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
            self._name = ""
            self._tell(error.strerror or str(error))
        finally:
            self._hangs = False
            self._busy.release()
            done.release()

    def _write(self, lines: Sequence[bytes], about: str | None, now_s: float) -> None:
        descriptor = self._open(_APPEND)
        try:
            size = claim(descriptor)
            written_s = -math.inf if about is None else self._written_s.get(about, -math.inf)
            if about is not None and size > THIN_FROM_BYTES and now_s - written_s < _THIN_S:
                self._withheld[about] = lines
                return
            if size > MOST_BYTES:
                raise OSError(errno.EDQUOT, f"is longer than {MOST_BYTES >> 20} MiB")
            withheld = chain.from_iterable(self._withheld.values()) if about is None else ()
            for line in chain(withheld, lines):
                # Ends a partly written line, so that it does not spoil the next.
                data = b"\n" + line if self._is_broken else line
                self._is_broken = True
                if os.write(descriptor, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._is_broken = False
            if about is None:
                self._withheld.clear()
            else:
                self._written_s[about] = now_s
                # Also of others that have one of its metrics: their steps would go back.
                names = set(about.split())
                self._withheld = {key: kept for key, kept in self._withheld.items() if names.isdisjoint(key.split())}
        finally:
            os.close(descriptor)

    def _open(self, flags: int) -> int:
        if self._spool is None:
            return os.open(self._path, flags, FILE_MODE)
        spool = os.open(self._spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self._lies_in(spool):
                return os.open(self._path.name, flags, FILE_MODE, dir_fd=spool)
            directory = self._own_directory(spool)
            try:
                return os.open(self._path.name, flags, FILE_MODE, dir_fd=directory)
            finally:
                os.close(directory)
        finally:
            os.close(spool)

    def _lies_in(self, spool: int) -> bool:
        """Whether the file is in the spool itself: a former release set the spool up, at least when the job began."""
        if not os.fstat(spool).st_mode & stat.S_ISGID:
            return True
        if self._name:
            return False
        try:
            status = os.stat(self._path.name, dir_fd=spool, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()

    def _own_directory(self, spool: int) -> int:
        """A descriptor of the user's directory, which is made if there is none."""
        uid = os.geteuid()
        if self._name:
            directory = open_directory(self._name, spool)
            if os.fstat(directory).st_uid == uid:
                return directory
            os.close(directory)
        name = str(uid)
        try:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=spool)
        except FileExistsError:
            if not (own := _owned(spool, uid)):
                os.mkdir(f"{uid}-{secrets.token_hex(4)}", DIRECTORY_MODE, dir_fd=spool)
                own = _owned(spool, uid)  # another process of the user may have made one as well: all use the first
            name = own[0]
        directory = open_directory(name, spool)
        if os.fstat(directory).st_mode & 0o777 != DIRECTORY_MODE:  # a umask such as 077 would deny the daemon access
            os.fchmod(directory, DIRECTORY_MODE)
        self._name = name
        return directory

    def _tell(self, fault: str) -> None:
        if fault not in self._told:
            self._told.add(fault)
            warn("explsched", f"progress is not reported: {self._path}: {fault}")


def claim(descriptor: int) -> int:
    """Let the daemon read the file, and return its size. Raises OSError unless it is a regular file of this user."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    if status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "belongs to somebody else")
    if status.st_size == 0 and status.st_mode & 0o777 != FILE_MODE:  # as above
        os.fchmod(descriptor, FILE_MODE)
    return status.st_size
