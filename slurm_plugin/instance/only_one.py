"""That no other daemon steers this cluster: on this host for certain, on others as far as the spool tells."""

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

    @property
    def is_settled(self) -> bool:
        """Whether it is known which cluster this is about."""
        return self._heartbeat is not None

    def settle(self, cluster: str, spool: Path) -> None:
        """Take the lock of this host for a cluster. Raises `AnotherDaemonError`."""
        self._lock.take(cluster)
        self._heartbeat = Heartbeat(spool, cluster, self._us)

    def check(self, silent_s: float) -> None:
        """Say that we are alive, and will again within `silent_s`. Raises `AnotherDaemonError`."""
        self._lock.tend()
        if self._heartbeat is not None:
            self._heartbeat.beat(silent_s)

    def release(self) -> None:
        """Let others steer."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        self._lock.release()
