"""The heartbeat of the daemon in the spool, by which those of other hosts know of it.

It is a file that the daemon writes anew again and again, in a directory of its own: what users put into the spool,
where all can write, and how much of it, should not matter. Daemons of one cluster read the same reports, so they have
the same spool, on a file system that they share. Those of two clusters must not have it: reports are known by the
numbers of jobs, which each cluster counts by itself. Ages are differences of the file system's own times: the hosts'
clocks need not agree. A lock of the file system would do as well where it locks across hosts, and do harm where it
hangs.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from explsched.atomic_file import replacing
from explsched.log import event
from explsched.spool import open_directory
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.daemon_user import hand_over, owner_in
from slurm_plugin.instance.holder import AnotherDaemonError, Holder

HEARTBEATS = ".sexplschedd"
"""The directory of heartbeats, in the spool; their names are digests of the clusters' names."""

PATIENCE_S = 10.0
_LOG = logging.getLogger("explsched.instance")
_LONGEST_S = 3600.0
_MOST_BYTES = 4096


class Beat(Struct, frozen=True):
    """What the file says. After `valid_s` without a new one the daemon counts as dead.

    `cluster` is the name alone, which stays if slurmctld moves; "" from a daemon of before.
    """

    holder: Holder
    valid_s: float
    cluster: str = ""


class Heartbeat:
    """The heartbeat of one daemon. A spool that cannot be written to keeps no daemon from its work: that is logged."""

    def __init__(self, spool: Path, cluster: str, us: Holder) -> None:
        """`cluster`: as `Capabilities.cluster` has it, its name first."""
        self._spool = spool
        digest = hashlib.sha256(cluster.encode()).hexdigest()[:16]
        self._path = spool / HEARTBEATS / f"{digest}.json"
        self._former = spool / f"{HEARTBEATS}-{digest}.json"  # of a daemon of release 0.1
        self._cluster = cluster
        self._cluster_name = cluster.partition("/")[0]
        self._us = us
        self._mounts = 0  # that have led to the spool
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
                file.write(msgspec.json.encode(Beat(self._us, valid_s, self._cluster_name)))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and self._is_ours():
                os.utime(self._path)  # it says the same, and we are alive
            raise

    def _touched_directory(self) -> float:
        """Make the directory of heartbeats if there is none, and touch it: by the file system's clock.

        That also works where nothing can be written any more. Raises `OSError`, also if it is somebody else's, or if
        fewer mounts lead to the spool than before: nobody looks for a heartbeat below a mount that is missing.
        """
        os.stat(f"{self._spool}/.")  # noqa: PTH116  with "/.", for which an automounter mounts it
        spool = self._spool.resolve()
        mounts = sum(path.is_mount() for path in (spool, *spool.parents))
        if mounts < self._mounts:
            raise OSError(errno.ESTALE, "no longer mounted: mount it, or reload if that is meant")
        self._mounts = mounts
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
            is_ours = path in (self._path, self._former)
            if not is_ours and other.cluster != self._cluster_name:
                raise AnotherDaemonError(
                    f"{self._spool}: also the daemon of another cluster uses this spool (pid {other.holder.pid} on "
                    f"host {other.holder.host}), and reports of jobs of the same number would be mixed up; "
                    "set progress.spool of each cluster to a directory of its own"
                )
            if other.holder.host != self._us.host or not (is_ours or other.holder == self._us):
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
