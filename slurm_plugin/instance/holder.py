"""A daemon, as another one and the users name it."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from typing import Self

from msgspec import Struct

from explsched.errors import ExplschedError


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
