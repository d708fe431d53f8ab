"""The lock of the host, which one daemon of a cluster has at a time.

It is a name that the kernel gives away once, and takes back from the dead: an abstract socket (unix(7)). There is no
file that could be left over, that a sandbox could hide, or that a daemon with another configuration would look for
elsewhere. Any user of the machine may take such a name, so the kernel is asked whose it is.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import struct
import time
from typing import NamedTuple

from explsched.log import event
from slurm_plugin.instance.holder import Holder

_LOG = logging.getLogger("explsched.instance")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED
_BACKLOG = 64
_ATTEMPTS = 5
_PAUSE_S = 0.2


class _Owner(NamedTuple):
    pid: int
    uid: int


class HostLock:
    """Held from `take` until `release` or the end of the process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    @property
    def is_held(self) -> bool:
        """Whether we have it."""
        return self._socket is not None

    def take(self, cluster: str) -> None:
        """Take the lock. Raises `AnotherDaemonError` if another daemon of root or of our user has it.

        Somebody else's process that has the name keeps no daemon from its work: that is logged.
        """
        name = address(cluster)
        owner = None
        for _attempt in range(_ATTEMPTS):
            self._socket = _bound(name)
            if self._socket is not None:
                return
            owner = _owner(name)
            if owner is not None:
                break
            time.sleep(_PAUSE_S)  # it has just ended, or is about to listen
        if owner is not None and may_hold(owner.uid, os.geteuid()):
            from explsched.process import started_s  # psutil: commands that only look for a daemon need none of it

            raise Holder(socket.gethostname(), owner.pid, started_s(owner.pid)).refusal(cluster)
        event(
            _LOG, logging.WARNING, "no lock: its name is taken by a process that is not sexplschedd", owner=str(owner)
        )

    def tend(self) -> None:
        """Dismiss those who have asked whose lock this is, so that there is room for the next."""
        while self._socket is not None:
            try:
                asker, _ = self._socket.accept()
            except BlockingIOError:
                return
            asker.close()

    def release(self) -> None:
        """Let it go."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def address(cluster: str) -> str:
    """The name in the kernel: the same for all daemons of a cluster, short enough for any cluster."""
    return "\0explsched/sexplschedd/" + hashlib.sha256(cluster.encode()).hexdigest()[:32]


def may_hold(uid: int, euid: int) -> bool:
    """Whether a process of `uid` is to be believed that it steers, by one of `euid`.

    Root, who can end any process, believes everybody. Others would be kept from work by any user of the machine.
    """
    return uid in (0, euid) or euid == 0


def _bound(name: str) -> socket.socket | None:
    """A socket with this name, None if another one has it."""
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        ours.bind(name)
    except OSError as error:
        ours.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    ours.settimeout(0)
    ours.listen(_BACKLOG)
    return ours


def _owner(name: str) -> _Owner | None:
    """The process that listens there; None if it cannot be asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_PAUSE_S)
        try:
            asking.connect(name)
            found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    pid, uid, _gid = _CREDENTIALS.unpack(found)
    return _Owner(pid, uid)
