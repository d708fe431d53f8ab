"""What an inference gateway shows of itself, read from the files in its state directory.

The gateway writes `status.json` once a second, its decisions to `events.jsonl`, and tokens to `usage.json`. Only its
user may enter that directory, so a page shows a gateway only where it runs as that user, or as root.

This package is below the gateway, whose release may be another one: what the page needs of these files is declared here
once more. `tests/inference_gateway/control/test_report.py` holds it against what the gateway writes.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

_KEPT = 360
_MEAN_S = 60.0
_STALE_S = 10.0
_EVENT_BYTES = 256 * 1024
_MOST_BYTES = 16 << 20
_MOST_EVENTS = 100
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ServerLoad(Struct, frozen=True):
    """What the metrics of a replica's server say; `kv_cache` is the share in use."""

    running: int
    waiting: int
    kv_cache: float | None = None


class ReplicaLine(Struct, frozen=True):
    """One replica of a service, as the control plane reports it."""

    name: str
    phase: str
    job_id: int | None
    host: str
    in_flight: int
    since_s: float
    ends_s: float | None
    reason: str
    load: ServerLoad | None = None


class Service(Struct, frozen=True):
    """One service. `arrivals` is of the last second; `wanted` is None before the first decision."""

    name: str
    serving: int
    coming: int
    draining: int
    wanted: int | None
    minimum: int
    maximum: int
    reason: str
    arrivals: int
    in_flight: int
    queued: int
    start_s: float
    given_up: bool
    replicas: tuple[ReplicaLine, ...]


class GatewayReport(Struct, frozen=True):
    """What `sexplsched gateway status` shows."""

    gateway: str
    time_s: float
    closing: bool
    services: tuple[Service, ...]


class Event(Struct, frozen=True):
    """One line of the event log."""

    unix_s: float
    event: str
    service: str = ""
    replica: str = ""
    replicas: int | list[str] | None = None
    reason: str | None = None


class _Tokens(Struct, frozen=True):
    requests: int = 0
    prompt: int = 0
    completion: int = 0


class _DayUsage(Struct, frozen=True):
    day: str
    service: str
    tokens: _Tokens


class _Usage(Struct, frozen=True):
    days: tuple[_DayUsage, ...] = ()


class _Load(Struct, frozen=True):
    """One second of a service."""

    time_s: float
    arrivals: int
    in_flight: int
    queued: int
    serving: int
    wanted: int | None


class _Found(Struct, frozen=True):
    """What the last look has found; `loads` and `tokens` by service, the latest of `events` first."""

    owner: str | None = None
    fault: str = "it has not reported yet"
    report: GatewayReport | None = None
    loads: Mapping[str, tuple[_Load, ...]] = MappingProxyType({})
    events: Sequence[Event] = ()
    tokens: Mapping[str, _Tokens] = MappingProxyType({})


class GatewayFiles:
    """One gateway's state directory, looked at every now and then, in a thread: its file system may hang."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._found = _Found()

    @property
    def owner(self) -> str | None:
        """Who runs the gateway; None if that is not known."""
        return self._found.owner

    def look(self, now_s: float) -> None:
        """Take in what the files hold at present."""
        day = time.strftime("%Y-%m-%d", time.localtime(now_s))
        owner, events, tokens = _owner(self.directory), _events(self.directory), _tokens(self.directory, day)
        found = replace(self._found, owner=owner, events=events, tokens=tokens)
        try:
            report = msgspec.json.decode(_end_of(self.directory / "status.json", _MOST_BYTES), type=GatewayReport)
        except OSError as error:
            self._found = replace(found, fault=f"{self.directory}/status.json: {error.strerror}")
            return
        except _UNREADABLE as error:
            self._found = replace(found, fault=f"{self.directory}/status.json: {error}")
            return
        loads = found.loads
        if found.report is None or report.time_s != found.report.time_s:
            loads = {one.name: _with_load(loads.get(one.name, ()), report.time_s, one) for one in report.services}
        self._found = replace(found, fault="", report=report, loads=loads)

    def told(self, now_s: float) -> dict[str, object]:
        """What the page shows, of what the last look has found."""
        found = self._found
        shown = found.report
        return {
            "directory": str(self.directory),
            "name": shown.gateway if shown else "",
            "closing": shown.closing if shown else False,
            "fault": found.fault,
            "is_stale": shown is not None and now_s - shown.time_s > _STALE_S,
            "written_s": shown.time_s if shown else None,
            "services": [_service(one, found) for one in shown.services] if shown else [],
            "events": to_builtins(found.events),
        }


def _with_load(loads: tuple[_Load, ...], time_s: float, one: Service) -> tuple[_Load, ...]:
    """Without those of a clock that was ahead."""
    before = [load for load in loads if load.time_s < time_s]
    return (*before[1 - _KEPT :], _Load(time_s, one.arrivals, one.in_flight, one.queued, one.serving, one.wanted))


def _service(one: Service, found: _Found) -> dict[str, object]:
    loads, tokens = found.loads[one.name], found.tokens.get(one.name, _Tokens())
    columns = [[getattr(load, name) for load in loads] for name in _Load.__struct_fields__]
    latency_s = mean_latency_s([load for load in loads if load.time_s > loads[-1].time_s - _MEAN_S])
    return {**to_builtins(one), "latency_s": latency_s, "tokens": to_builtins(tokens), "loads": columns}


def _owner(directory: Path) -> str | None:
    try:
        return pwd.getpwuid(directory.stat().st_uid).pw_name
    except (OSError, KeyError):
        return None


def _events(directory: Path) -> list[Event]:
    """The latest decisions, the newest first."""
    found: list[Event] = []
    try:
        lines = _end_of(directory / "events.jsonl", _EVENT_BYTES).splitlines()
    except OSError:
        return found
    for line in reversed(lines):
        try:
            found.append(msgspec.json.decode(line, type=Event))
        except _UNREADABLE:
            continue  # the line that the tail begins with, or one of another release
        if len(found) == _MOST_EVENTS:
            break
    return found


def _tokens(directory: Path, day: str) -> Mapping[str, _Tokens]:
    """Today's, by service."""
    try:
        found = msgspec.json.decode(_end_of(directory / "usage.json", _MOST_BYTES), type=_Usage)
    except (OSError, *_UNREADABLE):
        return {}
    sums: dict[str, _Tokens] = {}
    for one in found.days:
        if one.day == day:
            before, now = sums.get(one.service, _Tokens()), one.tokens
            sums[one.service] = _Tokens(
                before.requests + now.requests,
                before.prompt + now.prompt,
                before.completion + now.completion,
            )
    return sums


def mean_latency_s(loads: Sequence[_Load]) -> float | None:
    """Mean time that a request spent in the gateway, waiting included: Little's law, L = lambda W, over these seconds.

    None while nothing arrives.
    """
    arrivals = sum(load.arrivals for load in loads)
    return sum(load.in_flight + load.queued for load in loads) / arrivals if arrivals else None


def _end_of(path: Path, most: int) -> bytes:
    """The last `most` bytes of a regular file. Raises OSError.

    Where root serves the page, the directory is another user's, who may have put a fifo or a link there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        _ = file.seek(max(0, status.st_size - most))
        return file.read(most)
