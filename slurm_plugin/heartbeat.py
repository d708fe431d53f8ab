"""The daemon's heartbeat: a file in the spool, which every node sees, so that commands on any node can tell it runs.

The daemon writes it once a pass and removes it when it stops. The spool is open to all users, so the file is a hint for
people and nothing is decided by it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from explsched.atomic_file import replace_file

FILE = "daemon.json"
_MAX_BYTES = 4096
_MISSED_PASSES = 3
_SHORTEST_PATIENCE_S = 30.0  # passes take time, and clocks of nodes differ a little


class Heartbeat(Struct, frozen=True):
    """Who runs, and the Unix time of its last pass. `interval_s` is the time to the next heartbeat, at most."""

    host: str
    pid: int
    time_s: float
    interval_s: float
    policy: str

    @classmethod
    def now(cls, time_s: float, interval_s: float, policy: str) -> Self:
        """The heartbeat of this process."""
        return cls(socket.gethostname(), os.getpid(), time_s, interval_s, policy)

    def is_fresh(self, now_s: float) -> bool:
        """Whether the daemon can be taken to run: it has not missed several passes in a row."""
        return now_s - self.time_s <= max(_SHORTEST_PATIENCE_S, _MISSED_PASSES * self.interval_s)


def write(spool: Path, heartbeat: Heartbeat) -> None:
    """Publish the heartbeat in one step, readable by everybody. Raises `OSError`."""
    replace_file(spool / FILE, msgspec.json.encode(heartbeat), mode=0o644)


def read(spool: Path) -> Heartbeat | None:
    """The last heartbeat; None if there is none that can be read."""
    try:
        # O_NONBLOCK: a fifo that somebody put there must not hang the command.
        descriptor = os.open(spool / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(descriptor, _MAX_BYTES), type=Heartbeat)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)


def remove(spool: Path) -> None:
    """Remove the heartbeat of this process; that of another stays. Raises `OSError`."""
    found = read(spool)
    if found is not None and (found.host, found.pid) == (socket.gethostname(), os.getpid()):
        (spool / FILE).unlink(missing_ok=True)


def notice(spool: Path, now_s: float) -> str | None:
    """One line for people if jobs cannot report, or if no daemon seems to run; None if all is well."""
    if not spool.is_dir():
        return f"the spool {spool} is missing, so jobs cannot report progress; see `sexplsched doctor`"
    found = read(spool)
    if found is None:
        return f"no daemon runs (there is no {spool / FILE}): Slurm's own order holds; start sexplschedd"
    if not found.is_fresh(now_s):
        age_s = now_s - found.time_s
        return f"the daemon on {found.host} has been silent for {age_s:.0f} s: Slurm keeps its last order"
    return None
