"""What the gateway shows to replicas, and what it asks of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Trust:
    """The gateway's certificate with its key, and that of the authority which replicas have theirs from. PEM."""

    authority: str
    certificate: str = field(repr=False)


def client_context(authority: Path, certificate: Path) -> ssl.SSLContext:
    """How the gateway connects to a replica; the replica's name is to be given as the server's. Raises `OSError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate)
    return context
