"""The audit file: one JSON line for each change, written by whoever hands changes to Slurm, rotated by size.

It belongs to the daemon's user and its group reads it: it names all users' jobs. A file that cannot be written keeps
nobody from steering; that is logged and counted.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from explsched.errors import ExplschedError
from explsched.log import event
from slurm_plugin.audit.entries import AuditEntry, Before, Reasons, entries
from slurm_plugin.client.changes import Change, ChangeFailure
from slurm_plugin.client.protocol import SlurmClient

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
        """Append the entries, in one piece."""
        self.recent.extend(found)
        if not found:
            return
        lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in found)
        try:
            self._rotate(len(lines))
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE
            )
            with os.fdopen(descriptor, "ab", buffering=0) as file:
                self._own(descriptor)
                _ = file.write(lines)
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
    older = sorted(
        (found for found in path.parent.glob(f"{path.name}.*") if found.suffix[1:].isdecimal()),
        key=lambda found: -int(found.suffix[1:]),
    )
    try:
        texts = [(found, found.read_bytes()) for found in (*older, path) if found != path or path.exists()]
    except OSError as error:
        raise AuditError(f"{error.filename}: cannot be read: {error.strerror}") from error
    for found, text in texts:
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                entry = msgspec.json.decode(line, type=AuditEntry)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                event(_LOG, logging.WARNING, "audit line left out", file=str(found), line=number, why=str(error))
                continue
            if entry.time_s >= since_s and (jobs is None or entry.job in jobs):
                yield entry


def replayed(found: Iterable[AuditEntry], field: str) -> Mapping[int, object]:
    """The last value that a field of each job was given, and that Slurm took."""
    return {entry.job: entry.after for entry in found if entry.field == field and not entry.refused and entry.job}
