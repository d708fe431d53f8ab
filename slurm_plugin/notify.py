"""Tells systemd how the service is (sd_notify(3)); does nothing where no systemd asked for it."""

from __future__ import annotations

import os
import socket


def notify(*assignments: str) -> None:
    """Send assignments such as `READY=1` to the socket that systemd named. A lost message must not end a service."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    name = "\0" + address[1:] if address.startswith("@") else address  # @: Linux's abstract names
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.sendto("\n".join(assignments).encode(), name)
        except OSError:  # systemd itself then times the start out and says so
            return
