"""Talks to a running kernel manager. The protocol is that of `kernel_intercept/shared/protocol.hpp`."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_intercept.profile.store import KernelKey, ProfileError

SOCKET_VARIABLE = "EXPLSCHED_KM_SOCKET"
_MAGIC, _VERSION, _STATUS, _FORGET = 0x4D505845, 1, 4, 6
_LONGEST = 128 * 1024
_TIMEOUT_S = 2.0
TEMPORARY = "/tmp"  # noqa: S108  only looked at; the manager itself checks who asks


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """What a manager tells: the socket asked, and its answer, decoded JSON."""

    path: Path
    answer: dict[str, Any]


def sockets(job: int | None, uid: int) -> list[Path]:
    """The sockets that a manager of this user could have on this machine.

    The one that the environment names, those that `sxrun` makes for one job, or for all jobs on shards of a GPU
    (`wrappers/runtime_directory.py`), and the one that the SPANK plugin starts (docs/admin.md).
    """
    named = os.environ.get(SOCKET_VARIABLE)
    bases = [Path(base) for base in (os.environ.get("SLURM_TMPDIR", ""), TEMPORARY) if base.startswith("/")]
    rooms = ["*"] if job is None else [str(job), "gpu"]
    directories = [*(f"explsched-{uid}-{room}-*/km" for room in rooms), f"explsched-{uid}"]
    patterns = [f"{directory}/kernel-manager.sock" for directory in directories]
    found = [path for base in bases for pattern in patterns for path in sorted(base.glob(pattern))]
    return list(dict.fromkeys([*([Path(named)] if named else []), *found]))


def ask(path: Path) -> ManagerStatus:
    """The manager's status. Raises `ProfileError` if none answers in two seconds, or not as expected."""
    with _connection(path) as connection:
        connection.send(struct.pack("=IHH", _MAGIC, _VERSION, _STATUS))
        data = connection.recv(_LONGEST)
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ProfileError(f"{path}: found {data[:80]!r}, accepted is one JSON object")
    return ManagerStatus(path, answer)


def forget(path: Path, keys: Iterable[KernelKey]) -> None:
    """Have the manager drop profiles, in memory and in the file. Raises `ProfileError` as `ask`, or if it refuses."""
    with _connection(path) as connection:
        for key in keys:
            message = struct.pack(
                "=IHHQ3I3I2I",
                *(_MAGIC, _VERSION, _FORGET, key.name_hash),
                *(key.grid.x, key.grid.y, key.grid.z, key.block.x, key.block.y, key.block.z),
                *(key.shared_bytes, key.compute_capability),
            )
            connection.send(message)
            if (answer := connection.recv(_LONGEST)) != message:
                raise ProfileError(f"{path}: the kernel manager does not forget {key}: {answer[8:]!r}")


@contextmanager
def _connection(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(str(path))
            yield connection
        except OSError as error:
            raise ProfileError(f"{path}: no kernel manager answers: {error.strerror or error}") from error
