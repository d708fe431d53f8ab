"""The services file and the key file as last accepted, and the format of the key file.

The gateway continues with the accepted files when a file has become invalid, and through restarts of its parts: the
running configuration changes only when a valid file is loaded. The key file has the SHA-256 of each key:

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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from msgspec import Meta

from explsched import strict_yaml
from explsched.atomic_file import replace_file, replacing
from explsched.strict_yaml import ConfigError, Section
from inference_gateway import services
from inference_gateway.dataplane.settings import (
    LEAVING_LIMIT_S,
    ApiKey,
    BatchSettings,
    Canary,
    GatewaySettings,
    HealthSettings,
    Priority,
    ServiceSettings,
    digest_of,
)
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas.identity import Authority
from inference_gateway.services import GatewaySection, ServiceSection

_SERVICES = "services.yaml"
_KEYS = "keys.yaml"
_LONGEST_RETRY_S = 86_400


@dataclass(frozen=True, slots=True)
class Accepted:
    """The contents of both files, validated, and their texts. `services_path` is the path of the services file.

    `slot` is 2 for the second of two gateways.
    """

    services_path: Path
    section: GatewaySection
    keys: tuple[ApiKey, ...]
    services_text: str
    keys_text: str
    slot: int = 1

    @property
    def paths(self) -> GatewayPaths:
        """The paths of the gateway's files."""
        return GatewayPaths(self.section.state_directory, self.slot)

    @property
    def port(self) -> int:
        """The port on which this gateway listens."""
        second = self.section.job.second
        own = second.port if second is not None and self.slot > 1 else None
        return self.section.listen.port if own is None else own

    def settings(self, run_directory: Path) -> GatewaySettings:
        """The settings of HAProxy and the activator. `run_directory` is on a local disk.

        Raises `SettingsError` for a value that HAProxy does not accept, `GatewayError` if the gateway's certificate
        authority cannot be made.
        """
        listen = self.section.listen
        return GatewaySettings(
            directory=run_directory,
            port=self.port,
            host=listen.host,
            services=tuple(_service(name, service) for name, service in self.section.services.items()),
            trust=Authority.of(self.paths.identity).trust,
            batches=self.batches(),
            page=listen.page,
            authentication="none" if listen.keys is None else "keys",
            keys=self.keys,
            certificate=listen.certificate,
            threads=listen.threads,
            connection_limit=listen.connection_limit,
            source_connections=listen.source_connections,
            source_connections_per_s=listen.source_connections_per_s,
            request_timeout_s=listen.request_timeout_s,
            body_limit_mib=listen.body_limit_mib,
            leaving_limit_s=max(LEAVING_LIMIT_S, self.section.job.handover_s),
        )

    def batches(self) -> BatchSettings | None:
        """The settings of batches; None if no service accepts them."""
        if all(service.batches == "none" for service in self.section.services.values()):
            return None
        given = self.section.batches
        limits = (given.file_limit_mib << 20, given.files_per_key, given.requests_per_batch)
        return BatchSettings(self.paths.batches, *limits)

    def check(self) -> None:
        """Make the gateway's directories and check the values for HAProxy. Raises as `settings`, and `OSError`."""
        self.paths.make()
        self.settings(Path("/tmp/explsched"))  # noqa: S108  only checked

    def keep(self) -> None:
        """Save both files in a directory that only the user may enter. Raises `GatewayError` (disk full).

        What is saved already is not written again, so that a gateway can start while the disk is full.
        """
        directory = self.paths.accepted
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            for name, text in ((_SERVICES, self.services_text), (_KEYS, self.keys_text)):
                path = directory / name
                if not path.exists() or path.read_bytes() != text.encode():
                    replace_file(path, text)
        except OSError as error:
            raise GatewayError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error


def read(services_path: Path, slot: int = 1) -> Accepted:
    """Read and check the services file and its key file. Raises `ConfigError` listing every fault."""
    section, text = services.read(services_path, services_path)
    found, keys_text = read_keys(section.listen.keys, section.listen.keys)
    unknown = [(key.name, name) for key in found for name in key.services if name not in section.services]
    if unknown:
        known = ", ".join(section.services)
        where = f"{section.listen.keys}: keys"
        raise ConfigError("\n".join(f"{where}.{key}.services: no service {name!r} ({known})" for key, name in unknown))
    return Accepted(services_path.resolve(), section, found, text, keys_text, slot)


def kept(directory: Path, services_path: Path, slot: int = 1) -> Accepted | None:
    """The saved files; None if there are none. Paths in them are relative to `services_path`. Raises `ConfigError`."""
    if not (directory / _SERVICES).exists():
        return None
    section, text = services.read(directory / _SERVICES, services_path)
    found, keys_text = read_keys(directory / _KEYS, section.listen.keys)
    return Accepted(services_path.resolve(), section, found, text, keys_text, slot)


def changed(now: Accepted) -> Accepted:
    """Read both files again. Raises `ConfigError`, also for a key that cannot be changed while the gateway is up."""
    new = read(now.services_path, now.slot)
    fault = _unchangeable(now.section, new.section)
    if fault:
        raise ConfigError(f"{now.services_path}: {fault} while the gateway is up")
    return new


def _unchangeable(old: GatewaySection, new: GatewaySection) -> str:
    """The first key that differs but cannot be changed while the gateway runs, with both values; empty if none."""
    values = (
        ("name", old.name, new.name),
        ("directory", old.state_directory, new.state_directory),
        ("listen.host", old.listen.host, new.listen.host),
        ("listen.port", old.listen.port, new.listen.port),
        ("listen.certificate", _scheme(old), _scheme(new)),
        ("job.second", _second(old), _second(new)),
    )
    return next((f"{key}: is {was} and cannot become {wanted}" for key, was, wanted in values if was != wanted), "")


def _second(section: GatewaySection) -> str:
    second = section.job.second
    return "null" if second is None else f"on port {second.port or section.listen.port}"


def _scheme(section: GatewaySection) -> str:
    return "http" if section.listen.certificate is None else "https"


def _service(name: str, service: ServiceSection) -> ServiceSettings:
    health = service.health
    return ServiceSettings(
        name=name,
        models=(*service.models, *service.also_serves),
        adapters=service.also_serves,
        paths=service.paths,
        queue_limit=service.queue_limit,
        queue_deadline_s=service.queue_deadline_s,
        queue_target_s=service.queue_target_s,
        requests_per_s=service.requests_per_s,
        prompt_tokens_per_s=service.prompt_tokens_per_s,
        concurrency=service.concurrency,
        cold_start_limit=service.cold_start_limit,
        cold_start_deadline_s=service.cold_start_deadline_s,
        response_timeout_s=service.response_timeout_s,
        retry_after_s=retry_after_s(service.scale.start_s),
        affinity=service.affinity,
        canary=None if service.canary is None else Canary(service.canary.service, service.canary.share),
        repeat_posts=service.repeat_posts,
        health=HealthSettings(
            path=health.path,
            interval_s=health.interval_s,
            timeout_s=health.timeout_s,
            fall=health.fall,
            rise=health.rise,
        ),
    )


def retry_after_s(start_s: float) -> int:
    """The value of Retry-After: about the time that a replica takes to start, at most a day."""
    return max(1, min(_LONGEST_RETRY_S, round(start_s)))


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


def load_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read and check a key file. Raises `ConfigError` listing every fault."""
    return parse_keys(strict_yaml.file_text(path), path)


def read_keys(path: Path | None, shown_as: Path | None) -> tuple[tuple[ApiKey, ...], str]:
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
    return parse_keys(text, shown_as), text


def parse_keys(text: str, path: Path) -> tuple[ApiKey, ...]:
    """Check the text of a key file; messages name `path`. Raises `ConfigError` listing every fault."""
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


def key_sections(path: Path) -> dict[str, KeySection]:
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


def add_key(path: Path, owner: str, line: str) -> None:
    """Add a line to a key file, which is created if necessary; comments and other lines are not changed.

    Raises `GatewayError` if `owner` has a key already or the file cannot be written, `ConfigError`.
    """
    with _locked(path):
        known = key_sections(path) if path.exists() else {}
        text = strict_yaml.file_text(path) if path.exists() else "keys:\n"
        if owner in known:
            raise GatewayError(f"{path}: {owner} has a key already; `gateway key --revoke {owner}` takes it back")
        text = text if known else _NO_KEYS.sub("keys:\n", text)
        column = _members(text)[1].value[0][0].start_mark.column if known else 2
        _replace(path, text.rstrip("\n") + f"\n{' ' * column}{line.strip()}\n", known, owner)


def revoke_key(path: Path, owner: str) -> None:
    """Remove the key of `owner` from a key file. Raises `GatewayError` if there is none, `ConfigError`."""
    with _locked(path):
        known = key_sections(path)
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
    parse_keys(text, path)
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
