"""The file with the keys of a gateway's clients: its format, and changes from the command line.

It has the SHA-256 of each key, never the key itself:

keys:
  alice: {sha256: 64 hex digits, services: [chat], requests_per_minute: 600, expires: 2027-01-31}
"""

from __future__ import annotations

import datetime
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import yaml
from msgspec import Meta

from explsched import strict_yaml
from explsched.atomic_file import replacing
from explsched.strict_yaml import ConfigError, Section
from inference_gateway.dataplane.settings import ApiKey, Priority, digest_of
from inference_gateway.errors import GatewayError

_NAMES = r"^[\w.-]*$"
_NO_KEYS = re.compile(r"^keys:\s*\{\s*\}[ \t]*\n?", re.MULTILINE)
_OWNER = r"^[A-Za-z0-9][\w.-]{0,62}$"
_Owner = Annotated[str, Meta(pattern=_OWNER)]


class KeySection(Section, frozen=True):
    """One key."""

    sha256: Annotated[str, Meta(pattern="^[0-9A-Fa-f]{64}$", description="SHA-256 of the key, hex")]
    services: Annotated[tuple[str, ...], Meta(description="services it may use; empty: all")] = ()
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000)] | None, Meta(description="requests per minute; null: no limit")
    ] = None
    tokens_per_minute: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None, Meta(description="tokens per minute; null: no limit")
    ] = None
    tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None,
        Meta(description="tokens per day, from midnight on; null: no limit"),
    ] = None
    weight: Annotated[int, Meta(ge=1, le=1000, description="weight of its queued requests in fair queueing")] = 1
    priority: Annotated[Priority, Meta(description="batch: served after all requests of interactive keys")] = (
        "interactive"
    )
    account: Annotated[str, Meta(pattern=_NAMES, description="Slurm account that `usage` shows it under")] = ""
    user: Annotated[str, Meta(pattern=_NAMES, description="login of its user; empty: the key's name")] = ""
    expires: Annotated[datetime.date | None, Meta(description="last day of validity; null: no expiry")] = None

    @property
    def expires_s(self) -> int | None:
        """The end of its last day in the gateway's time zone, in seconds since the epoch; None if it has none."""
        if self.expires is None or self.expires == datetime.date.max:
            return None
        after = self.expires + datetime.timedelta(days=1)
        return int(datetime.datetime.combine(after, datetime.time.min).astimezone().timestamp())


class KeysSection(Section, frozen=True):
    """A whole key file."""

    keys: dict[_Owner, KeySection]


def load(path: Path) -> tuple[ApiKey, ...]:
    """Read and check a key file. Raises `ConfigError` listing every fault."""
    return parse(strict_yaml.file_text(path), path)


def read(path: Path | None, shown_as: Path | None) -> tuple[tuple[ApiKey, ...], str]:
    """The keys in the file at `path` and its text; messages name `shown_as`. No keys if no path is given.

    Raises `ConfigError`.
    """
    if path is None or shown_as is None:
        return (), ""
    try:
        text = strict_yaml.file_text(path)
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            what = "there is none; `sexplsched gateway key OWNER -s FILE` makes it"
            raise ConfigError(f"{path}: cannot be read: {what}") from error
        raise
    return parse(text, shown_as), text


def parse(text: str, path: Path) -> tuple[ApiKey, ...]:
    """Check the text of a key file; messages name `path`. Raises `ConfigError` listing every fault."""
    faults: list[str] = []
    found = strict_yaml.read(KeysSection, strict_yaml.mapping(text, path), faults)
    keys: list[ApiKey] = []
    for name, key in found.keys.items() if found else ():
        try:
            keys.append(_api_key(name, key))
        except GatewayError as error:
            faults.append(f"keys.{name}: {error}")
    owners: dict[str, str] = {}
    for known in keys:
        first = owners.setdefault(known.digest, known.name)
        if first != known.name:
            faults.append(f"keys.{known.name}.sha256: is that of {first}, too")
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
    """The entries of a key file, by owner. Raises `ConfigError`."""
    return _sections(strict_yaml.file_text(path), path)


def _sections(text: str, path: Path) -> dict[str, KeySection]:
    faults: list[str] = []
    found = strict_yaml.read(KeysSection, strict_yaml.mapping(text, path), faults)
    if found is None or faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return found.keys


def new_key(owner: str, days: int | None = None, user: str = "", account: str = "") -> tuple[str, str]:
    """A new random key for `owner`, valid for `days` if given, and its line for the key file.

    `user` is the login of `owner` where that is another name, `account` a Slurm account; both are for `usage`.
    Raises `GatewayError` for a name that is not accepted.
    """
    if re.fullmatch(_OWNER, owner) is None:
        raise GatewayError(f"{owner!r}: accepted are letters, digits, `_`, `.` and `-`, the first a letter or a digit")
    if re.fullmatch(_NAMES, account) is None:
        raise GatewayError(f"--account {account!r}: accepted are letters, digits, `_`, `.` and `-`")
    key = secrets.token_urlsafe(32)
    told: dict[str, object] = {"sha256": digest_of(key)}
    told |= {"user": user} if user not in ("", owner) else {}
    told |= {"account": account} if account else {}
    told |= {} if days is None else {"expires": datetime.date.today() + datetime.timedelta(days=days)}
    # A line as yaml quotes it: a login may be a number.
    return key, "  " + yaml.safe_dump({owner: told}, default_flow_style=None, sort_keys=False, width=1000).strip()


def add(path: Path, owner: str, line: str) -> None:
    """Add a line to a key file, which is created if necessary; comments and other lines are not changed.

    Raises `GatewayError` if `owner` has a key already or the file cannot be written, `ConfigError`.
    """
    with _locked(path):
        known = sections(path) if path.exists() else {}
        text = strict_yaml.file_text(path) if path.exists() else "keys:\n"
        if owner in known:
            raise GatewayError(f"{path}: {owner} has a key already; `gateway key --revoke {owner}` takes it back")
        text = text if known else _NO_KEYS.sub("keys:\n", text)
        column = _members(text)[1].value[0][0].start_mark.column if known else 2
        _replace(path, text.rstrip("\n") + f"\n{' ' * column}{line.strip()}\n", known, owner)


def revoke(path: Path, owner: str) -> None:
    """Remove the key of `owner` from a key file. Raises `GatewayError` if there is none, `ConfigError`."""
    with _locked(path):
        known = sections(path)
        if owner not in known:
            raise GatewayError(f"{path}: {owner} has no key")
        _replace(path, _without(strict_yaml.file_text(path).rstrip("\n") + "\n", owner), known, owner)


def _members(text: str) -> tuple[yaml.ScalarNode, yaml.MappingNode]:
    """The title of the keys in a valid key file, and the keys."""
    root: Any = yaml.compose(text, yaml.SafeLoader)
    title, members = root.value[0]
    return title, members


def _without(text: str, owner: str) -> str:
    """The text of a key file, which ends with a line break, without the lines of `owner`."""
    title, members = _members(text)
    places = {name.value: (name.start_mark.line, value) for name, value in members.value}
    if owner not in places:  # merged from elsewhere
        return text
    begin, value = places[owner]
    end = max(begin + 1, value.end_mark.line + (1 if value.flow_style else 0))
    lines = text.splitlines(keepends=True)
    while not lines[end - 1].partition("#")[0].strip():  # a block ends for YAML where the next one begins
        end -= 1
    after = lines[end:]
    if len(members.value) > 1:
        return "".join(lines[:begin] + after)
    line = title.start_mark.line
    return "".join([*lines[:line], "keys: {}\n", *lines[line + 1 : begin], *after])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep others from changing a file of keys, by a lock file beside it: what they add or revoke would be lost."""
    name = f"{path.resolve()}.lock"
    with ExitStack() as opened:
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, lock)
            if path.exists() and os.fstat(lock).st_uid == os.geteuid():
                _give(lock, path.stat())
        except OSError as error:
            raise GatewayError(f"{name}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise GatewayError(f"{name}: cannot be locked with flock: {error.strerror}") from error
        yield


def _replace(path: Path, text: str, known: dict[str, KeySection], owner: str) -> None:
    """Replace a key file for all who may use it, or make one for us alone.

    Raises `GatewayError`, also (and changes nothing) if not the key of `owner` alone would change of the `known` ones,
    as in a file that is laid out as nobody expects; and `ConfigError`.
    """
    by_hand = f"{path}: its layout allows no change of {owner} alone; edit the file by hand"
    try:
        new = _sections(text, path)
    except ConfigError as error:
        raise GatewayError(by_hand) from error
    was, others = ({name: one for name, one in keys.items() if name != owner} for keys in (known, new))
    if was != others or (owner in known) == (owner in new):
        raise GatewayError(by_hand)
    parse(text, path)
    try:
        found = path.stat() if path.exists() else None
        with replacing(path.resolve(), mode=0o600) as file:
            file.write(text.encode())
            if found is not None:
                _give(file.fileno(), found)
    except OSError as error:
        raise GatewayError(f"{path}: cannot be written: {error.strerror}") from error


def _give(handle: int, known: os.stat_result) -> None:
    """Give a file of ours the mode and the group of a known one, and if we are root its owner. Raises `OSError`.

    If we are not in that group, ours gets nothing of what it may.
    """
    mode = known.st_mode & 0o666
    try:
        os.fchown(handle, known.st_uid if os.geteuid() == 0 else -1, known.st_gid)
    except PermissionError:
        mode &= 0o606
    os.fchmod(handle, mode)
