"""What the control plane remembers over a restart, what it tells others, and its event log.

What is remembered and told are JSON files, written in one step. Slurm is asked first about what exists; the state file
adds what Slurm does not know: which replicas were draining, how long starts took, how many failed. The event log has
one JSON object a line, each with its reason. A full disk must not stop the gateway: lines that cannot be written are
counted, and the count is written later.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from explsched.atomic_file import replace_file, replace_file_durably
from explsched.log import event
from inference_gateway.control.replica import Replica
from inference_gateway.control.start_times import Foretold
from inference_gateway.gateway_paths import GatewayPaths

FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Attempts:
    """The failed starts and refused submissions of a service in a row, and when the last one was (since the epoch)."""

    failures: int = 0
    last_s: float = 0.0
    refusals: int = 0

    def failed(self, asked_s: float, now_s: float) -> Attempts:
        """After the failure of a replica that was asked for at `asked_s`."""
        if self.failures and asked_s <= self.last_s:
            return self
        return replace(self, failures=self.failures + 1, last_s=now_s)

    def refused(self, asked_s: float, now_s: float) -> Attempts:
        """After Slurm has refused the submission of a replica that was asked for at `asked_s`."""
        if self.refusals and asked_s <= self.last_s:
            return self
        return replace(self, refusals=self.refusals + 1, last_s=now_s)

    def succeeded(self) -> Attempts:
        """After a replica has begun to serve."""
        return Attempts()

    @property
    def wait_s(self) -> float:
        """Time from the last failure to the next start."""
        count = self.failures + self.refusals
        return min(FIRST_WAIT_S * 2.0 ** min(count - 1, 30), LONGEST_WAIT_S) if count else 0.0

    def given_up(self, most: int) -> bool:
        """Whether there were `most` failures in a row: a person has to look."""
        return self.failures >= most

    def startable(self, wanted: int, coming: int, most: int, now_s: float) -> int:
        """How many of `wanted` replicas may be started now, while `coming` are on their way."""
        if not self.failures and not self.refusals:
            return wanted
        if self.given_up(most) or now_s < self.last_s + self.wait_s:
            return 0
        return min(wanted, max(0, 1 - coming))


_LOG = logging.getLogger("explsched.gateway")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ServiceMemory:
    """What is known of a service.

    `starts_s` are its latest start times, submission to serving; `waits_s` are their parts in Slurm's queue, `loads_s`
    those from the start of the job on. `foretold` is what came of Slurm's estimates for its jobs.
    """

    attempts: Attempts = field(default_factory=Attempts)
    starts_s: tuple[float, ...] = ()
    waits_s: tuple[float, ...] = ()
    loads_s: tuple[float, ...] = ()
    foretold: tuple[Foretold, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """All that is remembered."""

    replicas: tuple[Replica, ...] = ()
    services: dict[str, ServiceMemory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Override:
    """What a person has set by command for a service: at least so many replicas. `at_s` is when."""

    minimum: int
    at_s: float


def save(path: Path, value: object) -> bool:
    """Write a value as JSON: a reader finds the old file or the new one, also after a power cut. False: not written."""
    return _written(replace_file_durably, path, msgspec.json.encode(value))


def show(path: Path, value: object) -> bool:
    """Write what is out of date in a second: as `save`, but without waiting for the disk."""
    return _written(replace_file, path, msgspec.json.encode(value))


def write_text(path: Path, text: str) -> bool:
    """As `show`, of what is no JSON."""
    return _written(replace_file, path, text.encode())


def _written(write: Callable[[Path, bytes], None], path: Path, content: bytes) -> bool:
    try:
        write(path, content)
    except OSError as error:
        event(_LOG, logging.ERROR, "state not written", file=str(path), why=error.strerror or str(error))
        return False
    return True


def read(path: Path, kind: type[_Value]) -> _Value | None:
    """The value of a file; None, with a line in the log, if there is none that can be understood."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        event(_LOG, logging.ERROR, "state file is invalid, continuing without it", file=str(path), why=str(error))
        return None


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Try to hold the lock for the block; False if somebody else has it. The kernel drops it when we die.

    On NFS Linux turns flock into a lock at the server, so it holds between nodes.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """Who serves at the address. Times are seconds since the epoch."""

    url: str
    host: str
    port: int
    pid: int
    job_id: int | None
    run_directory: str
    since_s: float
    node: str


def announce(paths: GatewayPaths, record: GatewayRecord) -> bool:
    """Publish the address, beside that of a second gateway. False: not written."""
    return save(paths.gateway, record) and _write_addresses(paths)


def _write_addresses(paths: GatewayPaths) -> bool:
    """Each gateway has written its own record before, so of two that write at a time the later one knows both."""
    records = [found for found in map(holder, paths.slots) if found is not None]
    if records:
        return _written(replace_file, paths.address, "".join(f"{record.url}\n" for record in records).encode())
    paths.address.unlink(missing_ok=True)
    return True


def holder(paths: GatewayPaths) -> GatewayRecord | None:
    """Who has the address; None if nobody has."""
    return read(paths.gateway, GatewayRecord)


def withdraw(paths: GatewayPaths, pid: int, since_s: float) -> None:
    """Take the address back if it is still that process's."""
    record = holder(paths)
    if record is not None and (record.pid, record.since_s) == (pid, since_s):
        paths.gateway.unlink(missing_ok=True)
        _write_addresses(paths)


def forget_requests(paths: GatewayPaths) -> None:
    """Remove what commands have left for an earlier gateway of the name."""
    for left in (paths.closing, paths.overrides, paths.orders, *(own.reload for own in paths.slots)):
        left.unlink(missing_ok=True)


_LOG = logging.getLogger("explsched.gateway")
_LARGEST_BYTES = 16 * 1024 * 1024


class EventLog:
    """Appends events to a file; a large one is kept once, as `FILE.1`."""

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
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            size = file.tell()
        self._lost = 0
        if size > _LARGEST_BYTES:
            self._path.replace(self._path.with_name(self._path.name + ".1"))


class Outage:
    """Writes down that somebody does not answer, or answers again: once, not every second."""

    def __init__(self, who: str, events: EventLog) -> None:
        self._who = who
        self._events = events
        self._fault = ""

    def note(self, fault: str) -> None:
        """How the last call ended; empty if it was answered."""
        if fault != self._fault:
            self._fault = fault
            self._events.note(
                f"{self._who} does not answer" if fault else f"{self._who} answers again", reason=fault or None
            )
