"""Two TCP ports for a replica, without a race: one that the gateway reaches, and one for the server behind it.

The first is owned: its socket listens at once and shares with nobody, so nobody else gets it while the job runs. The
other is reserved for a server that is not ours, by a bound socket that does not listen. Linux lets a server share it
that binds with SO_REUSEADDR or SO_REUSEPORT, as servers do, but also a stranger who does (see `listeners`); another
`reserve` binds with neither and is refused. No outgoing connection takes either: the range lies below the kernel's own
(32768 on). Only the standard library: this runs in jobs.
"""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20000, 32000


_ATTEMPTS = 200


def reserve() -> socket.socket:
    """A socket bound to a free port; the port is reserved until it is closed. Raises `OSError` if none is found."""
    holder = _bound(socket.AF_INET)  # all addresses: whichever one the server chooses is free
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def owned(host: str) -> socket.socket:
    """A socket that listens on all addresses of the kind of `host`, on a port of its own. Raises `OSError`."""
    listener = _bound(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.listen()
    return listener


def _bound(family: socket.AddressFamily) -> socket.socket:
    for port in random.sample(range(FIRST, LAST), _ATTEMPTS):
        made = socket.socket(family)
        try:
            made.bind(("", port))
        except OSError:
            made.close()
            continue
        return made
    raise OSError(f"none of {_ATTEMPTS} ports tried from {FIRST} to {LAST - 1} is free")


def address_towards(peer: str) -> str:
    """The IP address of this host on the way to `peer`. Raises `OSError` if there is no way."""
    family, kind, protocol, _name, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])
