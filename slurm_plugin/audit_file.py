"""The audit file: one JSON line for each change, rotated by size, and those who read it.

The file belongs to the daemon's user and its group reads it: it names all users' jobs. A file that cannot be written
keeps nobody from steering; that is logged and counted.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from explsched.errors import ExplschedError
from explsched.log import event
from slurm_plugin.client.changes import NOT_KNOWN
from slurm_plugin.daemon_user import hand_over

_LOG = logging.getLogger("explsched.audit")
_MODE = 0o640
_RECENT = 500
_MIB = 1 << 20
_APART_S = 3600.0
"""More than the clocks of this host and of slurmctld's, which entries go by, are apart."""

_REPEATED_S = 600.0
"""So often what Slurm refuses in every pass is written again."""

Value = str | float | int | None


class AuditEntry(Struct, frozen=True, omit_defaults=True):
    """One change of one field.

    `time_s` is when it was handed to Slurm, in seconds since the epoch. `job` is None for a change of no job, `user`
    its owner. `before` is what the pass had seen, `after` what was asked for. `refused` has Slurm's words if it did
    not take the change; empty if it did. They begin with `NOT_KNOWN` if it may have taken it.
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


class AuditError(ExplschedError):
    """The audit file cannot be read."""


class AuditTrail:
    """The file at `path`, and `kept` older ones of `max_mib` each beside it: `path.1` is the youngest of those."""

    def __init__(self, path: Path, max_mib: float, kept: int) -> None:
        self.path = path
        self._max_bytes = int(max_mib * _MIB)
        self._kept = kept
        self._fault = ""
        self._refused: dict[_Refusal, float] = {}  # when it was written
        self.faults = 0
        self.recent: deque[AuditEntry] = deque(maxlen=_RECENT)
        """The latest entries, the newest last; also those that could not be written."""

    def write(self, found: Sequence[AuditEntry]) -> None:
        """Append the entries, in one piece; those of what Slurm refuses again and again every ten minutes.

        A full disk, or a crash, may have cut the last line: it is ended first, so that it takes no other with it.
        """
        found = self._new(found) if found else ()
        self.recent.extend(found)
        if not found:
            return
        lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in found)
        try:
            self._rotate(len(lines))
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            with os.fdopen(descriptor, "a+b", buffering=0) as file:
                os.fchmod(descriptor, _MODE)
                hand_over(descriptor, self.path.parent)
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

    def _new(self, found: Sequence[AuditEntry]) -> Sequence[AuditEntry]:
        """Without refusals that were written lately: of a daemon that has lost its rights they would fill all files.

        What Slurm may have taken is none, and written always.
        """
        now_s = found[-1].time_s
        taken = {(entry.job, entry.field) for entry in found if not entry.refused}
        self._refused = {
            refusal: at_s
            for refusal, at_s in self._refused.items()
            if abs(now_s - at_s) < _REPEATED_S and refusal[:2] not in taken
        }
        new = [entry for entry in found if _refusal(entry) not in self._refused]
        refusals = (entry for entry in new if entry.refused and not entry.refused.startswith(NOT_KNOWN))
        self._refused |= {_refusal(entry): entry.time_s for entry in refusals}
        return new

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


_Refusal = tuple[int | None, str, str, str]
"""Job, field, rule (requeues and stops of a job have one field) and Slurm's words."""


def _refusal(entry: AuditEntry) -> _Refusal:
    return entry.job, entry.field, entry.rule, entry.refused


def read(path: Path, since_s: float = 0.0, jobs: frozenset[int] | None = None) -> Iterator[AuditEntry]:
    """The entries of a file and of the older ones beside it, oldest first. Raises `AuditError`.

    `jobs` limits them to those. A line that was cut, by a full disk or a crash, is left out and logged.
    """
    with ExitStack() as opened:
        # All at once: one that is put aside meanwhile has another name, and would be read twice or not at all.
        files = [(found, opened.enter_context(file)) for found in (*_older(path), path) if (file := _opened(found))]
        for found, file in files:
            if os.fstat(file.fileno()).st_mtime + _APART_S < since_s:
                continue
            for entry in _decoded(enumerate(file, start=1), found):
                if entry.time_s >= since_s and (jobs is None or entry.job in jobs):
                    yield entry


def _opened(path: Path) -> BinaryIO | None:
    """A file; None if there is none, or no longer. Raises `AuditError`."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror}") from error


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


def _decoded(numbered: Iterable[tuple[int, bytes]], path: Path) -> Iterator[AuditEntry]:
    for number, line in numbered:
        try:
            yield msgspec.json.decode(line, type=AuditEntry)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            event(_LOG, logging.WARNING, "audit line left out", file=str(path), line=number, why=str(error))


class RecentEntries:
    """The latest entries of a file, for those who look again and again: only what has been added is read."""

    def __init__(self, path: Path, for_s: float, most: int) -> None:
        """Entries of the last `for_s` seconds, `most` of them."""
        self._path = path
        self._for_s = for_s
        self._most = most
        self._found: deque[AuditEntry] = deque(maxlen=most)
        self._file: tuple[int, int] | None = None
        self._position = 0

    def now(self, now_s: float) -> Sequence[AuditEntry]:
        """The entries, oldest first. Raises `AuditError`."""
        with ExitStack() as opened:
            file = _opened(self._path)
            status = None if file is None else os.fstat(opened.enter_context(file).fileno())
            identity = None if status is None else (status.st_dev, status.st_ino)
            is_begun = status is not None and identity == self._file and status.st_size >= self._position
            if not is_begun:
                # The first look, or the file was put aside: begin anew, with the older files.
                self._found.clear()
                self._file, self._position = identity, 0
            if file is not None:
                self._read_on(file)
            if not is_begun:
                self._read_older(now_s)
        while self._found and self._found[0].time_s < now_s - self._for_s:
            self._found.popleft()
        return self._found

    def _read_on(self, file: BinaryIO) -> None:
        try:
            file.seek(self._position)
            added = file.read()
        except OSError as error:
            raise AuditError(f"{self._path}: cannot be read: {error.strerror}") from error
        whole = added[: added.rfind(b"\n") + 1]
        self._position += len(whole)
        self._found.extend(_decoded(enumerate(whole.splitlines(), start=1), self._path))

    def _read_older(self, now_s: float) -> None:
        """Put what is still wanted before the entries found, from the youngest of the older files backwards."""
        with ExitStack() as opened:
            # All at once, as in `read`.
            paths = reversed(_older(self._path))
            files = [(path, opened.enter_context(file)) for path in paths if (file := _opened(path))]
            for path, file in files:
                status, missing = os.fstat(file.fileno()), self._most - len(self._found)
                if missing <= 0 or status.st_mtime + _APART_S < now_s - self._for_s:
                    return
                if (status.st_dev, status.st_ino) == self._file:
                    continue  # it has been put aside since it was read
                try:
                    latest = deque(enumerate(file, start=1), maxlen=missing)
                except OSError as error:
                    raise AuditError(f"{path}: cannot be read: {error.strerror}") from error
                self._found.extendleft(reversed(list(_decoded(latest, path))))


def replayed(found: Iterable[AuditEntry], field: str) -> Mapping[int, object]:
    """The last value that a field of each job was given, and that Slurm took."""
    return {entry.job: entry.after for entry in found if entry.field == field and not entry.refused and entry.job}
