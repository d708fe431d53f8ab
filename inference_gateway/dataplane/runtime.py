"""HAProxy's runtime API: text commands over a Unix socket, one connection per batch, with a timeout."""

from __future__ import annotations

import csv
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_gateway.dataplane.configuration import ACTIVATOR, BACKEND_PREFIX
from inference_gateway.errors import DataPlaneError, NotRunningError, RefusedError

# HAProxy reads a line of commands into one buffer; the smallest that we configure has 16 KiB.
_MOST_BYTES = 12_000
# An empty line means success. Some commands print a message before it, `del server` only a message.
_SUCCESS = {"add server": "New server registered.\n", "del server": "Server deleted."}
_SUCCESS_LINES = frozenset(message.strip() for message in _SUCCESS.values())


@dataclass(frozen=True, slots=True)
class RuntimeApi:
    """A runtime socket. A call takes at most `timeout_s`."""

    path: Path
    timeout_s: float = 5.0

    def ask(self, command: str) -> str:
        """The answer to one command. Raises `NotRunningError`."""
        deadline_s = time.monotonic() + self.timeout_s
        parts: list[bytes] = []
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(self.timeout_s)
                link.connect(str(self.path))
                link.sendall(command.encode() + b"\n")
                link.shutdown(socket.SHUT_WR)  # the master answers further commands until it sees the end
                while part := link.recv(262144):
                    parts.append(part)
                    link.settimeout(max(0.001, deadline_s - time.monotonic()))
        except TimeoutError as error:
            raise NotRunningError(f"{self.path}: no answer from HAProxy within {self.timeout_s:g} s") from error
        except OSError as error:
            raise NotRunningError(f"{self.path}: HAProxy cannot be reached: {error.strerror}") from error
        return b"".join(parts).decode(errors="replace")

    def order(self, commands: Sequence[str]) -> None:
        """Carry out commands in order, all of them even if one is refused.

        Raises:
            NotRunningError: HAProxy cannot be reached.
            RefusedError: it refused some; the message names each with its reason.

        """
        faults: list[str] = []
        for batch in _batches(commands):
            answer = self.ask(";".join(batch))
            if not _all_done(batch, answer):
                messages = [line for line in _lines(answer) if line not in _SUCCESS_LINES]
                faults.append(f"{'; '.join(messages) or 'no answer'} (to {'; '.join(batch)})")
        if faults:
            raise RefusedError("HAProxy refused: " + "; ".join(faults))


def _all_done(commands: Sequence[str], answer: str) -> bool:
    """Whether HAProxy reports success for each command. Newer versions end some answers with another empty line."""
    expected = "".join(_SUCCESS.get(" ".join(command.split()[:2]), "") + "\n" for command in commands)
    return _lines(answer) == _lines(expected) and answer.count("\n") >= expected.count("\n")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _batches(commands: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    size = _MOST_BYTES
    for command in commands:
        if size + len(command) + 1 > _MOST_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(command)
        size += len(command) + 1
    return batches


_OPERATIONAL_STOPPED = 0
_IN_MAINTENANCE = 0x01 | 0x02 | 0x04
_DRAINING = 0x08 | 0x10
_CHECKED = 0x04
_PASSED = {"2": False, "3": True, "4": True}


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A service in `show stat`: counters since this HAProxy worker started, and its current requests.

    It has `present` requests, of which `queued` wait for a replica; `usable` replicas take requests.
    """

    service: str
    arrivals: int
    responses_5xx: int
    present: int
    queued: int
    usable: int
    responses_4xx: int = 0


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A replica in `show stat`. `check` is the code of its last health check, `remark` its message."""

    service: str
    name: str
    status: str
    check: str
    remark: str


@dataclass(frozen=True, slots=True)
class StateRow:
    """A replica in `show servers state`; `state`, `passed` as in `ServerState`. `watched`: its checks are enabled."""

    service: str
    name: str
    host: str
    port: int
    state: str
    watched: bool
    passed: bool | None


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one master: `current` takes new requests, `leaving` ones finish theirs after a reload."""

    current: int
    leaving: tuple[int, ...]
    reloads: int
    failed_reloads: int


def backends(text: str) -> list[BackendRow]:
    """The services in the answer to `show stat -1 2 -1`."""
    return [
        BackendRow(
            service=row["pxname"].removeprefix(BACKEND_PREFIX),
            arrivals=int(row["stot"]),
            responses_5xx=int(row["hrsp_5xx"] or 0),
            present=int(row["scur"]),
            queued=int(row["qcur"]),
            usable=int(row["act"]),
            responses_4xx=int(row["hrsp_4xx"] or 0),
        )
        for row in _statistics(text)
    ]


def held(text: str) -> dict[str, int]:
    """The number of requests held back for each service, from the answer to `show held` (`turns.lua`)."""
    pairs = (fields for fields in _fields(text, skipped=0) if fields[0].startswith(BACKEND_PREFIX))
    return {backend.removeprefix(BACKEND_PREFIX): int(count) for backend, count in pairs}


def server_rows(text: str) -> list[ServerRow]:
    """The replicas in the answer to `show stat BACKEND 4 -1`."""
    return [
        ServerRow(
            service=row["pxname"].removeprefix(BACKEND_PREFIX),
            name=row["svname"],
            status=row["status"],
            check=row["check_status"].removeprefix("* "),
            remark=row["last_chk"],
        )
        for row in _statistics(text)
        if row["svname"] != ACTIVATOR
    ]


def server_states(text: str) -> list[StateRow]:
    """The replicas in the answer to `show servers state`."""
    found = []
    for fields in _fields(text, skipped=2):
        if fields[1].startswith(BACKEND_PREFIX) and fields[3] != ACTIVATOR:
            service = fields[1].removeprefix(BACKEND_PREFIX)
            state = _state(operational=int(fields[5]), admin=int(fields[6]))
            watched, passed = bool(int(fields[13]) & _CHECKED), _PASSED.get(fields[11])
            found.append(StateRow(service, fields[3], fields[4], int(fields[18]), state, watched, passed))
    return found


def in_flight(text: str) -> dict[tuple[str, str], int]:
    """The connections in use by (service, replica), from the answer to `show servers conn`."""
    found: dict[tuple[str, str], int] = {}
    for fields in _fields(text, skipped=1):
        backend, _, name = fields[0].rpartition("/")
        if backend.startswith(BACKEND_PREFIX) and name != ACTIVATOR:
            found[backend.removeprefix(BACKEND_PREFIX), name] = int(fields[6])
    return found


def is_named(text: str, backend: str, server: str) -> bool:
    """Whether a request is meant for this server, connected or not, by the answer to `show sess`."""
    return f" be={backend} srv={server} " in text


def dropped_logs(text: str) -> int:
    """The number of dropped log lines, from the answer to `show info`. Raises `DataPlaneError` if it is missing."""
    found = re.search(r"^DroppedLogs: (\d+)$", text, re.MULTILINE)
    if found is None:
        raise DataPlaneError("HAProxy does not report how many log lines it has dropped")
    return int(found[1])


def haproxy_version(text: str) -> tuple[int, int]:
    """Major and minor version, from the answer to `show info`. Raises `DataPlaneError` if it is missing."""
    found = re.search(r"^Version: (\d+)\.(\d+)", text, re.MULTILINE)
    if found is None:
        raise DataPlaneError("HAProxy does not tell its version")
    return int(found[1]), int(found[2])


def workers(text: str) -> Workers:
    """The processes in the master's answer to `show proc`. Raises `DataPlaneError` if it has no worker."""
    found: list[tuple[bool, int, int]] = []
    reloads = failed = 0
    old = False
    for line in text.splitlines():
        fields = line.split()
        if line.startswith("# old workers"):
            old = True
        elif len(fields) > 2 and fields[1] == "worker":
            found.append((old, int(fields[2]), int(fields[0])))
        elif len(fields) > 4 and fields[1] == "master":
            reloads, failed = int(fields[2]), int(fields[4].rstrip("]"))
    if not found:
        raise DataPlaneError(f"HAProxy's master has no worker: {text.strip()!r}")
    # After a failed reload HAProxy 3.2 lists the worker that continues among the old ones. It is the one that has seen
    # the fewest reloads.
    current, *leaving = (pid for _, _, pid in sorted(found))
    return Workers(current, tuple(leaving), reloads, failed)


def _state(operational: int, admin: int) -> str:
    if admin & _IN_MAINTENANCE:
        return "maintenance"
    if admin & _DRAINING:
        return "draining"
    return "down" if operational == _OPERATIONAL_STOPPED else "up"


def _statistics(text: str) -> Iterator[dict[str, str]]:
    rows = csv.reader(line for line in text.removeprefix("# ").splitlines() if line)
    try:
        names = next(rows)
    except StopIteration:
        raise DataPlaneError("HAProxy's statistics are empty") from None
    for row in rows:
        if row[0].startswith(BACKEND_PREFIX):
            yield dict(zip(names, row, strict=False))


def _fields(text: str, skipped: int) -> Iterator[list[str]]:
    for line in text.splitlines()[skipped:]:
        if line and not line.startswith("#"):
            yield line.split()
