"""Whether a daemon runs, as any user on any node can tell: by the heartbeat in the spool.

The spool is open to all users, so this is a hint for people; nothing is decided by it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from msgspec import Struct

from slurm_plugin.instance.heartbeat import PREFIX, SUFFIX, read
from slurm_plugin.instance.holder import Holder


class Sighting(Struct, frozen=True):
    """The last heartbeat: whose it is, when it was written, and how long it is valid."""

    holder: Holder
    time_s: float
    silent_s: float

    def is_alive(self, now_s: float) -> bool:
        """Whether the daemon can be taken to run. A process of this host is looked for."""
        if self.holder.host == socket.gethostname() and not _exists(self.holder.pid):
            return False
        return now_s - self.time_s < self.silent_s


def last(spool: Path) -> Sighting | None:
    """The newest heartbeat of a spool; None if there is none that can be read."""
    found = (seen for path in spool.glob(f"{PREFIX}*{SUFFIX}") if (seen := _sighting(path)) is not None)
    return max(found, key=lambda seen: seen.time_s, default=None)


def notice(spool: Path, now_s: float) -> str | None:
    """One line for people if jobs cannot report, or if no daemon seems to run; None if all is well."""
    if not spool.is_dir():
        return f"the spool {spool} is missing, so jobs cannot report progress; see `sexplsched doctor`"
    seen = last(spool)
    if seen is None:
        return f"no daemon runs (no heartbeat in {spool}): Slurm's own order holds; start sexplschedd"
    if not seen.is_alive(now_s):
        age_s = max(0.0, now_s - seen.time_s)
        last_seen = f"no daemon runs, the last heartbeat is {age_s:.0f} s old, from {seen.holder.host}"
        return f"{last_seen}: Slurm keeps its last order"
    return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _sighting(path: Path) -> Sighting | None:
    try:
        found = read(path)
    except OSError:  # removed, or closed to us
        return None
    return None if found is None else Sighting(found[0].holder, found[1].st_mtime, found[0].silent_s)
