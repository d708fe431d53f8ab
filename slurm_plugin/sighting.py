"""What others see of a daemon: its last heartbeat, and whether the spool can be written at all."""

from __future__ import annotations

import grp
import os
import socket
import stat
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from slurm_plugin.daemon_user import may_be_daemons
from slurm_plugin.instance.heartbeat import HEARTBEATS, read_beat
from slurm_plugin.instance.holder import Holder

_LEAST_FREE_BYTES = 1 << 20
_CLOCKS_APART_S = 300.0
"""With hosts whose clocks differ by more munge, and so Slurm, does not work."""


class Sighting(Struct, frozen=True):
    """The last heartbeat: whose it is and of which user, when it was written, and how long it is valid."""

    holder: Holder
    uid: int
    time_s: float
    valid_s: float

    def is_alive(self, now_s: float) -> bool:
        """Whether the daemon can be taken to run. A process of this host is looked for.

        A heartbeat from far in the future is of before a clock was set back, and tells nothing.
        """
        if self.holder.host == socket.gethostname() and not _exists(self.holder.pid):
            return False
        return -_CLOCKS_APART_S < now_s - self.time_s < self.valid_s

    def age(self, now_s: float) -> str:
        """How old it is, in words."""
        age_s = now_s - self.time_s
        return f"{age_s:.0f} s old" if age_s >= 0 else f"{-age_s:.0f} s ahead of the clock"


def last_heartbeat(spool: Path) -> Sighting | None:
    """The newest heartbeat of a spool; None if there is none that can be read.

    Anybody may write there. So their directory and a file in it count only if they are root's, ours, or of the spool's
    owner or of a user with its group, as the daemon has: see `docs/admin.md#requirements`.
    """
    directory = spool / HEARTBEATS
    try:
        status, own = spool.stat(), directory.lstat()
        if not stat.S_ISDIR(own.st_mode) or not may_be_daemons(own.st_uid, status):
            return None
        names = os.listdir(directory)  # noqa: PTH208  names; Path.glob raises for closed directories
    except OSError:  # missing, or closed to us: `directory_fault` says so of the spool
        return None
    found = (seen for name in names if (seen := _sighting(directory / name, status)) is not None)
    return max(found, key=lambda seen: seen.time_s, default=None)


def notice(spool: Path, now_s: float) -> str | None:
    """One line for people if jobs cannot report, or if no daemon seems to run; None if all is well."""
    if fault := directory_fault(spool) or file_system_fault(spool):
        return f"the spool {spool} cannot be written ({fault}), so jobs cannot report progress; see `sexplsched doctor`"
    seen = last_heartbeat(spool)
    if seen is None:
        return f"no daemon runs (no heartbeat in {spool}): Slurm's own order holds; start sexplschedd"
    if not seen.is_alive(now_s):
        last_seen = f"no daemon runs, the last heartbeat is {seen.age(now_s)}, from {seen.holder.host}"
        return f"{last_seen}: Slurm keeps its last order"
    return None


def directory_fault(directory: Path) -> str:
    """Why it is no directory for this user; "" for one."""
    try:
        return "" if stat.S_ISDIR(directory.stat().st_mode) else "is not a directory"
    except OSError as error:
        return error.strerror or str(error)


def group_fault(spool: Path, uid: int, groups: Collection[int]) -> str:
    """Why a daemon of that user, in these groups, cannot read what users' jobs report; "" if it can, or has no spool.

    Only the owner and the spool's group can look into the directories that jobs make (`explsched.spool`).
    """
    try:
        status = spool.stat()
    except OSError:
        return ""
    if uid == 0 or not status.st_mode & stat.S_ISGID or status.st_gid in groups:
        return ""
    return f"it has group {group_name(status.st_gid)}, and so have the directories in it, which uid {uid} is not in"


def group_name(gid: int) -> str:
    """The name of a group, or its number."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def file_system_fault(directory: Path) -> str:
    """Why nobody can write on the directory's file system; "" if nothing is known against it."""
    try:
        there = os.statvfs(directory)
    except OSError as error:
        return error.strerror or str(error)
    if there.f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    if there.f_blocks and there.f_bavail * there.f_frsize < _LEAST_FREE_BYTES:
        return "its file system is full"
    return "its file system has no inodes left" if there.f_files and not there.f_favail else ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _sighting(path: Path, spool: os.stat_result) -> Sighting | None:
    try:
        found = read_beat(path)
    except OSError:  # removed, or closed to us
        return None
    if found is None:
        return None
    uid = found[1].st_uid
    return Sighting(found[0].holder, uid, found[1].st_mtime, found[0].valid_s) if may_be_daemons(uid, spool) else None
