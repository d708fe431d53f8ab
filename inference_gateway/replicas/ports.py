"""Two TCP ports for a replica, without a race: one that the gateway reaches, and one for the server behind it.

The first is owned: its socket listens at once and shares with nobody, so nobody else gets it while the job runs. The
other is reserved for a server that is not ours, by a bound socket that does not listen. Linux lets a server share it
that binds with SO_REUSEADDR or SO_REUSEPORT, as servers do, but also a stranger who does (see `listeners`); another
`reserve` binds with neither and is refused. No outgoing connection takes either: the range lies below the kernel's own
(32768 on). Only the standard library: this runs in jobs.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


_IPV4, _IPV6 = Path("/proc/net/tcp"), Path("/proc/net/tcp6")
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: its user, and its inode, which no other socket has while this one is there."""

    uid: int
    inode: int

    @property
    def ours(self) -> bool:
        """Whether it is of our own user. Root sees all that we do anyway, so what listens for root is no stranger."""
        return self.uid in (os.getuid(), 0)


@dataclass(frozen=True, slots=True)
class Taken:
    """Who gets the connections to a port of the loopback `address`; several can share one if they are of one user."""

    address: str
    listeners: frozenset[Listener]


def taken(port: int) -> Taken:
    """Who has a port of this node now. Raises `OSError` if the tables cannot be read."""
    lines = _IPV4.read_text(encoding="ascii").splitlines()
    if _IPV6.exists():
        lines += _IPV6.read_text(encoding="ascii").splitlines()
    return found_in(lines, port)


def found_in(lines: Iterable[str], port: int) -> Taken:
    """The same from the lines of the tables.

    Linux gives a connection to the socket that is bound to the very address before one that is bound to all, and lets
    nobody else bind the one while the other listens. But an IPv6 socket on all addresses may or may not take IPv4: it
    counts for ::1 alone, and only where nobody takes IPv4.
    """
    ending = f":{port:04X}"
    by_address: dict[str, set[Listener]] = {}
    for line in lines:
        if ending not in line:
            continue
        fields = line.split()
        if fields[3] == _LISTEN and fields[1].endswith(ending):
            address = fields[1].removesuffix(ending)
            by_address.setdefault(address, set()).add(Listener(int(fields[7]), int(fields[9])))
    for address, spellings in _PREFERENCE:
        listeners = frozenset(listener for text in spellings for listener in by_address.get(text, ()))
        if listeners:
            return Taken(address, listeners)
    return Taken("127.0.0.1", frozenset())


def _words(*words: int) -> str:
    """An address as the tables show it: words of 32 bits in the machine's order."""
    return "".join(f"{int.from_bytes(word.to_bytes(4, 'big'), sys.byteorder):08X}" for word in words)


_PREFERENCE = (
    ("127.0.0.1", (_words(0x7F000001), _words(0, 0, 0xFFFF, 0x7F000001))),
    ("127.0.0.1", (_words(0),)),
    ("::1", (_words(0, 0, 0, 1),)),
    ("::1", (_words(0, 0, 0, 0),)),
)
