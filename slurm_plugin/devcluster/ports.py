"""Free TCP ports for the daemons of a private cluster."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from slurm_plugin.devcluster.spec import DevClusterError

# Below the range from which Linux picks the ports of outgoing connections (32768 on): one of those could otherwise take
# a port between its choice and the start of its daemon.
_FIRST, _LAST = 20000, 32000


@contextmanager
def reserved(count: int) -> Iterator[tuple[int, ...]]:
    """Reserve `count` ports that nobody uses. Within the block no other cluster gets them.

    Reserving means holding a bound socket that does not listen. Slurm's daemons bind with SO_REUSEADDR, which Linux
    lets share such a port; the search of another `reserved` binds without it and is refused.

    Raises:
        DevClusterError: fewer than `count` ports are free.

    """
    with ExitStack() as held:
        ports: list[int] = []
        candidates = list(range(_FIRST, _LAST))
        random.shuffle(candidates)
        for port in candidates:
            if len(ports) == count:
                break
            probe = socket.socket()
            try:
                # All addresses, because that is what Slurm's daemons bind.
                probe.bind(("", port))
            except OSError:
                probe.close()
                continue  # taken, which is what the search is there to find out
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.enter_context(probe)
            ports.append(port)
        if len(ports) < count:
            raise DevClusterError(f"only {len(ports)} of {count} TCP ports are free in {_FIRST} to {_LAST - 1}")
        yield tuple(ports)
