"""Two TCP ports for a replica, allocated without a race: one for the gateway, one for the server behind the relay.

The first is owned: its socket listens at once and without sharing, so no other process gets the port while the job
runs. The second is reserved for the model server, by a bound socket that does not listen. Linux lets a server that
binds with SO_REUSEADDR or SO_REUSEPORT share it, as most servers do; unfortunately also that of another user (see
`taken`). Another `reserve` sets neither before it binds and is refused. Outgoing connections take neither port: the
range is below the kernel's ephemeral ports (from 32768). Standard library only: this runs in jobs.
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
    """A socket bound to a free port, which stays reserved until it is closed. Raises `OSError` if none is found."""
    holder = _bound(socket.AF_INET)  # on all addresses: the server may bind any of them
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def owned(host: str) -> socket.socket:
    """A socket that listens on all addresses of the family of `host`, on a free port. Raises `OSError`."""
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
    """The IP address of this host on the route to `peer`. Raises `OSError` if there is no route."""
    family, kind, protocol, _name, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


_IPV4, _IPV6 = Path("/proc/net/tcp"), Path("/proc/net/tcp6")
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: its owner, and its inode, which is unique while the socket exists."""

    uid: int
    inode: int

    @property
    def ours(self) -> bool:
        """Whether it belongs to our user or to root, who can see everything we do anyway."""
        return self.uid in (os.getuid(), 0)


@dataclass(frozen=True, slots=True)
class Taken:
    """The sockets that receive connections to a port of the loopback `address`; several of one user may share it."""

    address: str
    listeners: frozenset[Listener]


def taken(port: int) -> Taken:
    """Which sockets listen on a port of this node now. Raises `OSError` if the kernel's tables cannot be read."""
    lines = _IPV4.read_text(encoding="ascii").splitlines()
    if _IPV6.exists():
        lines += _IPV6.read_text(encoding="ascii").splitlines()
    return found_in(lines, port)


def found_in(lines: Iterable[str], port: int) -> Taken:
    """The same, from the lines of /proc/net/tcp and tcp6.

    Linux prefers the socket bound to the exact address to one bound to all addresses, and lets no other user bind the
    one while the other listens. An IPv6 socket on all addresses may or may not accept IPv4: it counts only for ::1, and
    only where no socket listens on IPv4.
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
    """An address as these tables print it: 32-bit words in the machine's byte order."""
    return "".join(f"{int.from_bytes(word.to_bytes(4, 'big'), sys.byteorder):08X}" for word in words)


_PREFERENCE = (
    ("127.0.0.1", (_words(0x7F000001), _words(0, 0, 0xFFFF, 0x7F000001))),
    ("127.0.0.1", (_words(0),)),
    ("::1", (_words(0, 0, 0, 1),)),
    ("::1", (_words(0, 0, 0, 0),)),
)
