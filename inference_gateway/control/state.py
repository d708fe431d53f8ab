"""The state that the control plane keeps over a restart, the state that it publishes, and its event log.

State files are JSON and are replaced atomically. At start Slurm is asked which replicas exist; the state file adds what
Slurm does not know: which replicas were draining, how long starts took, how many failed. The event log has one JSON
object per line, each with its reason. A full disk must not stop the gateway: lines that cannot be written are counted,
and the count is written later.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from explsched.atomic_file import replace_file, replace_file_durably
from explsched.log import event
from inference_gateway.control.replica import Replica
from inference_gateway.control.start_times import Foretold
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths

FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Attempts:
    """Consecutive failed starts and refused submissions of a service, and the time of the last (since the epoch)."""

    failures: int = 0
    last_s: float = 0.0
    refusals: int = 0

    def failed(self, asked_s: float, now_s: float) -> Attempts:
        """The state after a replica submitted at `asked_s` has failed; failures of one attempt count once."""
        if self.failures and asked_s <= self.last_s:
            return self
        return replace(self, failures=self.failures + 1, last_s=now_s)

    def refused(self, asked_s: float, now_s: float, most: int = sys.maxsize) -> Attempts:
        """The state after Slurm has refused a replica requested at `asked_s`; refusals of one attempt count once.

        This one makes them no more than `most`.
        """
        if self.refusals and asked_s <= self.last_s:
            return self
        return replace(self, refusals=max(self.refusals, min(self.refusals + 1, most)), last_s=now_s)

    def succeeded(self, at_s: float) -> Attempts:
        """The state after a start has proved successful at `at_s`: it ends a row of earlier failures."""
        return Attempts() if at_s > self.last_s else self

    @property
    def wait_s(self) -> float:
        """Seconds from the last failure to the next start (exponential backoff)."""
        count = self.failures + self.refusals
        return min(FIRST_WAIT_S * 2.0 ** min(count - 1, 30), LONGEST_WAIT_S) if count else 0.0

    def given_up(self, most: int) -> bool:
        """Whether there were `most` consecutive failures, so that an operator has to intervene."""
        return self.failures >= most

    def startable(self, wanted: int, coming: int, most: int, now_s: float) -> int:
        """How many of `wanted` replicas may be started now, while `coming` others are starting."""
        if not self.failures and not self.refusals:
            return wanted
        if self.given_up(most) or self.last_s <= now_s < self.last_s + self.wait_s:  # unless the clock was set back
            return 0
        return min(wanted, max(0, 1 - coming))


_LOG = logging.getLogger("explsched.gateway")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ServiceMemory:
    """The history of a service; `attempts` are of the configuration `generation` alone.

    `starts_s` are its latest start times, from submission to serving; `waits_s` are their parts in Slurm's queue,
    `loads_s` those after the start of the job. `foretold` compares Slurm's estimates for its jobs with what happened.
    """

    attempts: Attempts = field(default_factory=Attempts)
    starts_s: tuple[float, ...] = ()
    waits_s: tuple[float, ...] = ()
    loads_s: tuple[float, ...] = ()
    foretold: tuple[Foretold, ...] = ()
    generation: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """The control plane's saved state."""

    replicas: tuple[Replica, ...] = ()
    services: dict[str, ServiceMemory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Override:
    """A service's minimum number of replicas as set by `gateway scale`, and when (seconds since the epoch)."""

    minimum: int
    at_s: float


def save(path: Path, value: object) -> bool:
    """Write a value as JSON, atomically and durably (also against a power failure). False if it was not written."""
    return _written(replace_file_durably, path, msgspec.json.encode(value))


def show(path: Path, value: object) -> bool:
    """As `save`, but without waiting for the disk: for a value that is replaced every second."""
    return _written(replace_file, path, msgspec.json.encode(value))


def write_text(path: Path, text: str) -> bool:
    """As `show`, for plain text."""
    return _written(replace_file, path, text.encode())


def _written(write: Callable[[Path, bytes], None], path: Path, content: bytes) -> bool:
    try:
        write(path, content)
    except OSError as error:
        event(_LOG, logging.ERROR, "state not written", file=str(path), why=error.strerror or str(error))
        return False
    return True


def read(path: Path, kind: type[_Value]) -> _Value | None:
    """The value in a file; None if it does not exist or, with a line in the log, if it cannot be read."""
    try:
        return loaded(path, kind)
    except (OSError, GatewayError) as error:
        event(_LOG, logging.ERROR, "state file is invalid, continuing without it", file=str(path), why=str(error))
        return None


def loaded(path: Path, kind: type[_Value]) -> _Value | None:
    """The value in a file; None if there is none. Raises `OSError`, `GatewayError` if it is invalid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GatewayError(f"{path}: is invalid: {error}") from error


LASTING = frozenset({errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENOTDIR})
"""Errors in reading a file that do not pass by themselves, as those of a file server do."""


def loaded_or_moved(path: Path, kind: type[_Value], now_s: float, lasting: Container[int] = ()) -> _Value | None:
    """As `loaded`, but an invalid file is moved aside, so that it is not replaced; so is one with a `lasting` error."""
    try:
        return loaded(path, kind)
    except (OSError, GatewayError) as error:
        if isinstance(error, OSError) and error.errno not in lasting:
            raise
        aside = path.rename(path.with_name(f"{path.name}.invalid-{now_s:.0f}"))
        event(_LOG, logging.ERROR, "state file is invalid, continuing without it", file=str(aside), why=str(error))
        return None


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Try to hold the lock for the block; yields False if another process has it. The kernel releases it when we die.

    On NFS Linux implements flock as a lock on the server, so it works between nodes. Raises `GatewayError` where the
    file cannot be made, or its file system has no locks (a Lustre that is mounted without `-o flock`).
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GatewayError(f"{path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise GatewayError(f"{path}: cannot be locked with flock: {error.strerror}") from error
        yield True
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """The process that serves at a gateway's address. Times are seconds since the epoch."""

    url: str
    host: str
    port: int
    pid: int
    job_id: int | None
    run_directory: str
    since_s: float
    node: str


def announce(paths: GatewayPaths, record: GatewayRecord) -> bool:
    """Publish the address, next to that of a second gateway. False if it was not written."""
    return save(paths.gateway, record) and _write_addresses(paths)


def _write_addresses(paths: GatewayPaths) -> bool:
    """Write the address file. Each gateway has written its record before, so the later of two writers knows both."""
    records = [found for found in map(holder, paths.slots) if found is not None]
    if records:
        return _written(replace_file, paths.address, "".join(f"{record.url}\n" for record in records).encode())
    paths.address.unlink(missing_ok=True)
    return True


def holder(paths: GatewayPaths) -> GatewayRecord | None:
    """The record of the process that has the address; None if there is none."""
    return read(paths.gateway, GatewayRecord)


def withdraw(paths: GatewayPaths, pid: int, since_s: float) -> None:
    """Remove the address if it still belongs to that process."""
    record = holder(paths)
    if record is not None and (record.pid, record.since_s) == (pid, since_s):
        paths.gateway.unlink(missing_ok=True)
        _write_addresses(paths)


def begin_anew(paths: GatewayPaths) -> None:
    """Remove requests that commands left for an earlier gateway of this name, and forget its failed starts."""
    handovers = paths.root.glob("*handover*")
    for left in (paths.closing, paths.overrides, paths.orders, *(own.reload for own in paths.slots), *handovers):
        left.unlink(missing_ok=True)
    if memory := read(paths.memory, Memory):
        services = {name: replace(known, generation="") for name, known in memory.services.items()}
        save(paths.memory, replace(memory, services=services))


_LARGEST_BYTES = 16 * 1024 * 1024


class EventLog:
    """Appends events to a file, which is rotated once, to `FILE.1`, when it is large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost = 0

    def note(self, what: str, service: str = "", /, **fields: object) -> None:
        """Write one event. Fields that are None are left out."""
        now_s = time.time()
        record = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now_s)), "unix_s": round(now_s, 3)}
        record |= {"event": what, **({"service": service} if service else {})}
        record |= {key: value for key, value in fields.items() if value is not None}
        event(_LOG, logging.INFO, what, service=service, **fields)
        try:
            self._write(record)
        except OSError as error:
            if not self._lost:
                event(_LOG, logging.ERROR, "events are lost", file=str(self._path), why=error.strerror or str(error))
            self._lost += 1

    def _write(self, record: dict[str, object]) -> None:
        if self._lost:
            record = {**record, "lost_before": self._lost}
        with self._path.open("ab+") as file:
            size = file.tell()
            is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # the disk had room for a part of it
            file.write(b"\n" * is_torn + json.dumps(record).encode() + b"\n")
            file.flush()
            if file.tell() > _LARGEST_BYTES:
                self._rotate(file.fileno())
        self._lost = 0

    def _rotate(self, handle: int) -> None:
        """Rename the open file, unless another gateway job is doing so, or has done so: the new one is small."""
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), self._path.stat()):
                self._path.replace(self._path.with_name(self._path.name + ".1"))


class Outage:
    """Logs the beginning and the end of an outage, each once instead of every second."""

    def __init__(self, who: str, events: EventLog) -> None:
        self._who = who
        self._events = events
        self._fault = ""

    def note(self, fault: str) -> None:
        """Record how the last call failed; empty if it was answered."""
        if fault != self._fault:
            self._fault = fault
            self._events.note(
                f"{self._who} does not answer" if fault else f"{self._who} answers again", reason=fault or None
            )
