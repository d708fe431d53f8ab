"""At most one daemon per cluster: a lock on its host, and a heartbeat for other hosts.

The lock is a name that the kernel gives away once, and takes back from the dead: an abstract socket (unix(7)). There is
no file that could be left over, that a sandbox could hide, or that a daemon with another configuration would look for
elsewhere. Any user of the machine may take such a name, so the kernel is asked whose it is.

The heartbeat is a file below the spool that the daemon writes anew again and again, in a directory of its own: what
users put into the spool, where all can write, and how much of it, should not matter. Daemons of one cluster read the
same reports, so they have the same spool, on a file system that they share. Those of two clusters must not have it:
reports are known by the numbers of jobs, which each cluster counts by itself. Ages are differences of the file
system's own times: the hosts' clocks need not agree. A lock of the file system would do as well where it locks across
hosts, and do harm where it hangs.

What a daemon keeps in other directories is by the numbers of jobs, too, and outlives it. So a file in them names their
cluster.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
from msgspec import Struct

from explsched.atomic_file import create_file_durably, replacing
from explsched.errors import ExplschedError
from explsched.log import event
from explsched.spool import open_directory
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.daemon_user import hand_over, owner_in


class AnotherDaemonError(ExplschedError):
    """Another daemon steers this cluster, or a directory that we need is another cluster's."""


class Holder(Struct, frozen=True):
    """A daemon: where it runs, and since when (seconds since the epoch, None if that is not known)."""

    host: str
    pid: int
    since_s: float | None

    @classmethod
    def here(cls) -> Self:
        """The daemon that this process is."""
        return cls(socket.gethostname(), os.getpid(), time.time())

    def refusal(self, cluster: str) -> AnotherDaemonError:
        """What another daemon has to say and to leave at that."""
        known = self.since_s is not None
        since = f", since {datetime.fromtimestamp(self.since_s or 0).astimezone():%Y-%m-%dT%H:%M:%S}" if known else ""
        return AnotherDaemonError(
            f"another sexplschedd steers cluster {cluster}: pid {self.pid} on host {self.host}{since}; "
            "one at a time may, so stop that one first"
        )


HEARTBEATS = ".sexplschedd"
"""The directory of heartbeats, in the spool; their names are digests of the clusters' names."""

CLAIM = "explsched-cluster"
"""The file that says whose directory it is."""

_LOG = logging.getLogger("explsched.instance")
_LONGEST_S = 3600.0
PATIENCE_S = 10.0
_MOST_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED
_BACKLOG = 64
_ATTEMPTS = 5
_PAUSE_S = 0.2


class Beat(Struct, frozen=True):
    """What the file says. After `valid_s` without a new one the daemon counts as dead."""

    holder: Holder
    valid_s: float


class Heartbeat:
    """The heartbeat of one daemon. A spool that cannot be written to keeps no daemon from its work: that is logged."""

    def __init__(self, spool: Path, cluster: str, us: Holder) -> None:
        self._spool = spool
        digest = hashlib.sha256(cluster.encode()).hexdigest()[:16]
        self._path = spool / HEARTBEATS / f"{digest}.json"
        self._former = spool / f"{HEARTBEATS}-{digest}.json"  # of a daemon of release 0.1
        self._cluster = cluster
        self._us = us
        self._fault = ""
        self._call = BoundedCall(PATIENCE_S)

    def beat(self, valid_s: float) -> None:
        """Look for another daemon, then write. Raises `AnotherDaemonError` if one of another host or cluster is alive.

        One of this host and cluster is not asked after: that is what the lock of the host is for.
        """
        try:
            if self._call.run(partial(self._beat, valid_s)):
                self._fault = ""
            else:
                self._tell(f"no answer for {self._call.patience_s:g} s")
        except OSError as error:
            self._tell(error.strerror or str(error))

    def in_spool(self, spool: Path) -> Self:
        """Another heartbeat of this daemon."""
        return type(self)(spool, self._cluster, self._us)

    def stop(self) -> None:
        """Remove the file, if it is ours."""
        try:
            self._call.run(self._remove)
        except OSError as error:
            event(_LOG, logging.WARNING, "heartbeat not removed", why=str(error))

    def _tell(self, what: str) -> None:
        fault = f"{self._spool}: {what}"
        if self._fault != fault:
            self._fault = fault
            why = f"{fault}: a second daemon on another host would not be noticed"
            event(_LOG, logging.WARNING, "no heartbeat", why=why)

    def _remove(self) -> None:
        if self._is_ours():
            self._path.unlink()

    def _beat(self, valid_s: float) -> None:
        self._look(self._touched_directory())
        try:
            with replacing(self._path, mode=0o644) as file:  # everybody's `status` reads it
                file.write(msgspec.json.encode(Beat(self._us, valid_s)))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and self._is_ours():
                os.utime(self._path)  # it says the same, and we are alive
            raise

    def _touched_directory(self) -> float:
        """Make the directory of heartbeats if there is none, and touch it: by the file system's clock.

        That also works where nothing can be written any more. Raises `OSError`, also if it is somebody else's.
        """
        with suppress(FileExistsError):
            os.mkdir(self._path.parent, 0o755)  # noqa: PTH102  as a system call: a link there is not followed
        directory = open_directory(self._path.parent)
        try:
            uid = os.fstat(directory).st_uid
            if uid not in (os.geteuid(), owner_in(self._spool)):
                raise PermissionError(errno.EPERM, f"{HEARTBEATS} in it belongs to uid {uid}: have root remove it")
            if uid == os.geteuid():
                os.fchmod(directory, 0o755)  # also where a umask such as 077 has closed it to `status`
                hand_over(directory, self._spool)
            os.utime(directory)
            return os.fstat(directory).st_mtime
        finally:
            os.close(directory)

    def _look(self, now_s: float) -> None:
        """Raise `AnotherDaemonError` if a daemon that is not to be beside us is alive by the file system's time.

        A heartbeat from its future is of before its clock was set back, and tells as little as one that is as old.
        """
        for path in (*self._path.parent.glob("*.json"), self._former):
            other, written_s = self._trusted(path) or (None, 0.0)
            if other is None or abs(now_s - written_s) >= min(other.valid_s, _LONGEST_S):
                continue
            if path not in (self._path, self._former):
                raise AnotherDaemonError(
                    f"{self._spool}: also the daemon of another cluster uses this spool (pid {other.holder.pid} on "
                    f"host {other.holder.host}), and reports of jobs of the same number would be mixed up; "
                    "set progress.spool of each cluster to a directory of its own"
                )
            if other.holder.host != self._us.host:
                raise other.holder.refusal(self._cluster)

    def _is_ours(self) -> bool:
        found = self._trusted(self._path)
        return found is not None and found[0].holder == self._us

    def _trusted(self, path: Path) -> tuple[Beat, float] | None:
        """A heartbeat of root or the daemon's user, and when it was written; None if there is none."""
        with suppress(OSError):  # not there, closed to us, or a link
            found = read_beat(path)
            if found is not None and found[1].st_uid in (0, os.geteuid(), owner_in(self._spool)):
                return found[0], found[1].st_mtime
        return None


def read_beat(path: Path) -> tuple[Beat, os.stat_result] | None:
    """A heartbeat and whose file it is; None for what is none. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        try:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=Beat), status
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            return None


class Claim:
    """A directory that shall be our cluster's alone; `key` names it in the configuration.

    `cluster` is the name alone, which stays if slurmctld moves.
    """

    def __init__(self, directory: Path, cluster: str, key: str) -> None:
        self._directory = directory
        self._cluster = cluster
        self._key = key
        self._found = ""
        self._fault = ""
        self._call = BoundedCall(PATIENCE_S)

    def is_made(self) -> bool:
        """Write down whose directory it is, if nobody has. Raises `AnotherDaemonError` if it is another cluster's.

        False, to be asked again, if it is not there or cannot be claimed. The latter keeps no daemon from its work:
        that is logged, once per fault.
        """
        return self._is_found(self._make)

    def check(self) -> None:
        """Raise `AnotherDaemonError` if it is another cluster's; nothing is written down."""
        self._is_found(self._look)

    def _is_found(self, look: Callable[[], None]) -> bool:
        try:
            fault = "" if self._call.run(look) else f"no answer for {self._call.patience_s:g} s"
        except OSError as error:
            fault = error.strerror or str(error)
        if fault not in ("", self._fault):
            why = f"{self._directory}: {fault}"
            event(_LOG, logging.WARNING, "directory not claimed for this cluster", key=self._key, why=why)
        self._fault = fault
        if not fault and self._found not in ("", self._cluster):
            raise AnotherDaemonError(
                f"{self._directory}: belongs to cluster {self._found}, and this is {self._cluster}; set {self._key} of "
                "each cluster to a directory of its own. If only the name has changed, remove "
                f"{self._directory / CLAIM}"
            )
        return not fault and self._found != ""

    def _look(self) -> None:
        self._found = claimed_by(self._directory)

    def _make(self) -> None:
        self._look()
        if not self._found and self._directory.exists():
            with suppress(FileExistsError):  # another daemon has come first
                create_file_durably(self._directory / CLAIM, f"{self._cluster}\n", mode=0o644)
            self._look()


def claimed_by(directory: Path) -> str:
    """The name of the cluster whose directory it is; "" if none is written down. Raises `OSError`."""
    try:
        return (directory / CLAIM).read_bytes()[:_MOST_BYTES].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


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


class OnlyOne:
    """Asked before each pass: a daemon that was away for long may find that another has taken over."""

    def __init__(self) -> None:
        self._lock = HostLock()
        self._us = Holder.here()
        self._heartbeat: Heartbeat | None = None
        self._is_settled = False

    @property
    def is_settled(self) -> bool:
        """Whether the lock has been taken, and not released since."""
        return self._is_settled

    def settle(self, cluster: str, spool: Path) -> None:
        """Take the lock of this host for a cluster. Raises `AnotherDaemonError`."""
        self._lock.take(cluster)
        self._heartbeat, self._is_settled = Heartbeat(spool, cluster, self._us), True

    def try_spool(self, spool: Path, valid_s: float) -> None:
        """Raise `AnotherDaemonError` if another daemon is alive in this spool, in which ours may be from now on.

        Also after `release`; does nothing before the first `settle`, as the cluster is not known.
        """
        if self._heartbeat is not None:
            there = self._heartbeat.in_spool(spool)
            there.beat(valid_s)
            there.stop()

    def check(self, valid_s: float) -> None:
        """Say that we are alive, and will again within `valid_s`. Raises `AnotherDaemonError`."""
        self._lock.tend()
        if self._heartbeat is not None and self._is_settled:
            self._heartbeat.beat(valid_s)

    def release(self) -> None:
        """Let others steer."""
        if self._heartbeat is not None and self._is_settled:
            self._heartbeat.stop()
        self._is_settled = False
        self._lock.release()
