"""The file of API keys: who may use the gateway, known by the SHA-256 of each key.

keys:
alice: {sha256: 64 hex digits, services: [chat], requests_per_minute: 600, expires: 2027-01-31}
"""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path
from typing import Annotated

import yaml
from msgspec import Meta

from explsched import strict_yaml
from explsched.atomic_file import replace_file
from explsched.strict_yaml import ConfigError, Section
from inference_gateway.dataplane.settings import ApiKey, Priority, digest_of
from inference_gateway.errors import GatewayError

_Owner = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]{0,62}$")]


class KeySection(Section, frozen=True):
    """One key."""

    sha256: Annotated[str, Meta(pattern="^[0-9A-Fa-f]{64}$", description="SHA-256 of the key, hex")]
    services: Annotated[tuple[str, ...], Meta(description="services it may use; empty: all")] = ()
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None, Meta(description="requests admitted per minute; null: any")
    ] = None
    tokens_per_minute: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None, Meta(description="tokens per minute; null: any")
    ] = None
    tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None, Meta(description="tokens from midnight on; null: any")
    ] = None
    weight: Annotated[
        int, Meta(ge=1, le=1000, description="so many of its waiting requests go before those of keys that have more")
    ] = 1
    priority: Annotated[Priority, Meta(description="batch: waits for all requests of interactive keys")] = "interactive"
    account: Annotated[str, Meta(pattern=r"^[\w.-]*$", description="Slurm account that `usage` shows it under")] = ""
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
            keys.append(_api_key(name, key))
        except GatewayError as error:
            faults.append(f"keys.{name}: {error}")
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return tuple(keys)


def _api_key(name: str, key: KeySection) -> ApiKey:
    return ApiKey(
        name,
        key.sha256.upper(),
        key.services,
        key.requests_per_minute,
        key.expires_s,
        key.tokens_per_minute,
        key.tokens_per_day,
        key.weight,
        key.priority,
    )


def sections(path: Path) -> dict[str, KeySection]:
    """The keys of a file as they are written, by owner. Raises `ConfigError`."""
    faults: list[str] = []
    found = strict_yaml.read(KeysSection, strict_yaml.mapping(strict_yaml.file_text(path), path), faults)
    if found is None or faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return found.keys


def new_key(owner: str, days: int | None = None) -> tuple[str, str]:
    """A new random key, and the line for the file of keys that lets `owner` use it, for so many days from now."""
    key = secrets.token_urlsafe(32)
    last = "" if days is None else f", expires: {datetime.date.today() + datetime.timedelta(days=days)}"
    return key, f"  {owner}: {{sha256: {digest_of(key)}{last}}}"


def add(path: Path, owner: str, line: str) -> None:
    """Add a line to a file of keys, which is made if it is not there; comments and other lines stay as they are.

    Raises `GatewayError` if `owner` has a key already or the file cannot be written, `ConfigError`.
    """
    known = sections(path) if path.exists() else {}
    text = strict_yaml.file_text(path) if known else "keys:\n"
    if owner in known:
        raise GatewayError(f"{path}: {owner} has a key already; `gateway key --revoke {owner}` takes it back")
    _replace(path, text.rstrip("\n") + f"\n{line}\n")


def revoke(path: Path, owner: str) -> None:
    """Take the key of `owner` out of a file. Raises `GatewayError` if there is none, `ConfigError`."""
    if owner not in sections(path):
        raise GatewayError(f"{path}: {owner} has no key")
    text = strict_yaml.file_text(path)
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise GatewayError(f"{path}: is no mapping")
    (_, members), *_ = root.value
    begin, end = next(
        (name.start_mark.line, value.end_mark.line) for name, value in members.value if name.value == owner
    )
    if len({name.start_mark.line for name, _ in members.value}) < len(members.value):
        raise GatewayError(f"{path}: has several keys on a line, take out `{owner}` by hand")
    lines = text.splitlines(keepends=True)
    left = lines[:begin] + lines[max(end, begin + 1) :]
    _replace(path, "".join(left) if len(members.value) > 1 else "keys: {}\n")


def _replace(path: Path, text: str) -> None:
    """Replace a file of keys. Raises `GatewayError`, or `ConfigError` for a text that is none: nothing changes then."""
    parse(text, path)
    try:
        replace_file(path, text, mode=0o600)
    except OSError as error:
        raise GatewayError(f"{path}: cannot be written: {error.strerror}") from error
