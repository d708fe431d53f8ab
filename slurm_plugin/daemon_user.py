"""Which files are the daemon's: those of its user, also where root has made them by `sexplschedd --once` or a reset.

A directory of the daemon is its user's. The spool, where all users write, is root's, but has the group of the daemon's
user, and gives it to all that is made there.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def may_be_daemons(uid: int, directory: os.stat_result) -> bool:
    """Whether a file of that user there may be the daemon's: of root, us, the directory's owner or one in its group."""
    return uid in (0, os.geteuid(), directory.st_uid) or _group_of(uid) == directory.st_gid


def owner_in(directory: Path) -> int:
    """Whose a file of the daemon that we write there should be. Raises `OSError`."""
    uid, there = os.geteuid(), directory.stat()
    if uid != 0 or there.st_uid != 0 or not there.st_mode & stat.S_ISGID:
        return uid or there.st_uid
    try:
        user = pwd.getpwnam(grp.getgrgid(there.st_gid).gr_name)
    except KeyError:
        return uid
    return user.pw_uid if user.pw_gid == there.st_gid else uid


def hand_over(descriptor: int, directory: Path) -> None:
    """Give a file there that root writes to the daemon's user, and the directory's group. Raises `OSError`."""
    if os.geteuid() == 0:
        os.fchown(descriptor, owner_in(directory), directory.stat().st_gid)


def _group_of(uid: int) -> int | None:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return None
