"""A TCP port for a server that is not ours, without a race.

The port is held by a bound socket that does not listen. Linux lets a server share it that binds with SO_REUSEADDR or
SO_REUSEPORT, as servers do; another `reserve` binds with neither and is refused. So two replicas on a node never get
the same port, and no outgoing connection takes it: the range lies below the kernel's own (32768 on).
Only the standard library: this runs in jobs.
"""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20000, 32000


def reserve(attempts: int = 200) -> socket.socket:
    """A socket bound to a free port; the port is reserved until it is closed. Raises `OSError` if none is found."""
    for port in random.sample(range(FIRST, LAST), attempts):
        holder = socket.socket()
        try:
            holder.bind(("", port))  # all addresses: whichever one the server chooses is free
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return holder
    raise OSError(f"none of {attempts} ports tried from {FIRST} to {LAST - 1} is free")


def address_towards(peer: str) -> str:
    """The IP address of this host on the way to `peer`. Raises `OSError` if there is no way."""
    family, kind, protocol, _name, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])
