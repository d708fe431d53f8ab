"""Whose is a port of this node: the sockets that take connections to it on the loopback address.

From /proc/net/tcp and tcp6 (Linux, `Documentation/networking/proc_net_tcp.rst`), which show every user's sockets to
everybody. A bound socket that does not listen is not in them. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
