"""What the daemon asks before each pass: whether it may steer."""

from __future__ import annotations

from pathlib import Path

from slurm_plugin.instance.heartbeat import Heartbeat
from slurm_plugin.instance.holder import Holder
from slurm_plugin.instance.host_lock import HostLock


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
