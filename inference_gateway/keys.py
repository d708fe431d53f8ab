"""The file of API keys: who may use the gateway, known by the SHA-256 of each key.

keys:
alice: {sha256: 64 hex digits, services: [chat], requests_per_minute: 600, expires: 2027-01-31}
"""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from explsched import strict_yaml
from explsched.strict_yaml import ConfigError, Section
from inference_gateway.dataplane.settings import ApiKey, digest_of
from inference_gateway.errors import GatewayError

_Owner = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]{0,62}$")]


class KeySection(Section, frozen=True):
    """One key."""

    sha256: Annotated[str, Meta(pattern="^[0-9A-Fa-f]{64}$", description="SHA-256 of the key, hex")]
    services: Annotated[tuple[str, ...], Meta(description="services it may use; empty: all")] = ()
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None, Meta(description="requests admitted per minute; null: any")
    ] = None
    expires: Annotated[datetime.date | None, Meta(description="last day on which it is good; null: any")] = None

    @property
    def expires_s(self) -> int | None:
        """The end of its last day where the gateway runs, in seconds since the epoch."""
        if self.expires is None:
            return None
        after = self.expires + datetime.timedelta(days=1)
        return int(datetime.datetime.combine(after, datetime.time.min).astimezone().timestamp())


class KeysSection(Section, frozen=True):
    """All of a file of keys."""

    keys: dict[_Owner, KeySection]


def load(path: Path) -> tuple[ApiKey, ...]:
    """Read and check a file of keys. Raises `ConfigError` listing every fault."""
    return parse(strict_yaml.file_text(path), path)


def read(path: Path | None, shown_as: Path | None) -> tuple[tuple[ApiKey, ...], str]:
    """The keys of the file at `path` and its text, as if it lay at `shown_as`; none without a file.

    Raises `ConfigError`.
    """
    if path is None or shown_as is None:
        return (), ""
    text = strict_yaml.file_text(path)
    return parse(text, shown_as), text


def parse(text: str, path: Path) -> tuple[ApiKey, ...]:
    """Check the text of a file of keys; `path` serves the messages. Raises `ConfigError` listing every fault."""
    faults: list[str] = []
    found = strict_yaml.read(KeysSection, strict_yaml.mapping(text, path), faults)
    keys: list[ApiKey] = []
    for name, key in found.keys.items() if found else ():
        try:
            keys.append(ApiKey(name, key.sha256.upper(), key.services, key.requests_per_minute, key.expires_s))
        except GatewayError as error:
            faults.append(f"keys.{name}: {error}")
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return tuple(keys)


def new_key(owner: str) -> tuple[str, str]:
    """A new random key, and the line for the file of keys that lets `owner` use it."""
    key = secrets.token_urlsafe(32)
    return key, f"  {owner}: {{sha256: {digest_of(key)}}}"
