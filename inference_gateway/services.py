"""The services file, read and checked.

YAML, typed and strict: an unknown key is an error that names the nearest known one; all faults are reported at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import asdict, replace

from explsched import strict_yaml
from explsched.strict_yaml import ConfigError, Key
from inference_gateway.dataplane.open_paths import path_faults
from inference_gateway.errors import GatewayError
from inference_gateway.scaling.rules import Bounds, build
from inference_gateway.sections import GatewaySection, ServiceSection

PORT = "{port}"
MODEL = "{model}"

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_OWN_OPTIONS = {"--array": "-a", "--comment": "", "--dependency": "-d", "--job-name": "-J"}


def option_faults(options: Iterable[str]) -> Iterator[str]:
    """A message for each option of sbatch without which the gateway would not know its jobs again, or their order."""
    for option in options:
        name = option.partition("=")[0].partition(" ")[0]
        # sbatch takes any beginning of a name that no other option has.
        if any(long.startswith(name) or (short and option.startswith(short)) for long, short in _OWN_OPTIONS.items()):
            yield f"found {option!r}, accepted: all but {', '.join(_OWN_OPTIONS)}, which are the gateway's own"


def load(path: Path) -> GatewaySection:
    """Read and check a services file. Raises `ConfigError` listing every fault."""
    return parse(strict_yaml.file_text(path), path)


def read(path: Path, shown_as: Path) -> tuple[GatewaySection, str]:
    """The services file at `path` and its text; messages name `shown_as`. Raises `ConfigError`."""
    text = strict_yaml.file_text(path)
    return parse(text, shown_as), text


def directory_of(path: Path) -> Path:
    """The directory of a gateway's state by a services file with faults. Raises `ConfigError` if it cannot be read."""
    known = strict_yaml.top_level(strict_yaml.file_text(path))
    named = known.get("directory", "null")
    directory = None if named in ("", "~", "null") else Path(named)
    found = GatewaySection(services={}, name=known.get("name", GatewaySection(services={}).name), directory=directory)
    return _resolved(found, path).state_directory


def parse(text: str, path: Path) -> GatewaySection:
    """Check the text of a services file. Messages name `path`, and relative paths start from its directory.

    Raises `ConfigError` listing every fault.
    """
    faults: list[str] = []
    written = strict_yaml.mapping(text, path)
    found = strict_yaml.read(GatewaySection, written, faults)
    if written.get("services") == {}:  # those found lack what has a fault of its own
        faults.append("services: is empty, at least one is needed")
    if found is not None:
        faults += _faults(found)
    if found is None or faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return _resolved(found, path)


def keys() -> Iterator[Key]:
    """Every key of a services file."""
    return strict_yaml.keys(GatewaySection)


def _resolved(section: GatewaySection, file: Path) -> GatewaySection:
    base = file.resolve().parent

    def at(key: str, path: Path | None) -> Path | None:
        try:
            return None if path is None else base / path.expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{file}: {key}: the user in {str(path)!r} has no home directory, or is none") from error

    found = section.listen
    certificate, keys = at("listen.certificate", found.certificate), at("listen.keys", found.keys)
    listen = replace(found, certificate=certificate, keys=keys)
    return replace(section, directory=at("directory", section.directory), listen=listen)


def _faults(section: GatewaySection) -> Iterator[str]:
    """Faults that involve more than one key."""
    for name, service in section.services.items():
        for fault in _service_faults(service):
            yield f"services.{name}.{fault}"
    owners: dict[str, str] = {}
    for name, service in section.services.items():
        for model in dict.fromkeys((name, *service.models, *service.also_serves)):
            first = owners.setdefault(model, name)
            if first != name:
                key = "also_serves" if model in service.also_serves else "models"
                yield f"services.{name}.{key}: {model!r} is already routed to service {first!r}"
    yield from _canary_faults(section)
    yield from _second_faults(section)
    if section.listen.keys is None and section.listen.host not in _LOOPBACK:
        yield (
            f"listen.keys: without keys anybody who can reach {section.listen.host} may use the services; name a file "
            "of keys, or listen on 127.0.0.1"
        )


def _canary_faults(section: GatewaySection) -> Iterator[str]:
    for name, service in section.services.items():
        if service.canary is None:
            continue
        other = section.services.get(service.canary.service)
        where = f"services.{name}.canary.service: "
        if other is None or service.canary.service == name:
            known = ", ".join(known for known in section.services if known != name) or "none"
            yield f"{where}no other service {service.canary.service!r} ({known})"
        elif other.canary is not None:
            yield f"{where}{service.canary.service!r} has a canary of its own"


def canary_path_faults(section: GatewaySection) -> Iterator[str]:
    """Canaries with other paths than their service, for new files: 0.1.0 accepted them, and may have left such a one.

    HAProxy asks whether the service that a client names opens a path, not which one answers.
    """
    for name, service in section.services.items():
        canary = service.canary and section.services.get(service.canary.service)
        if service.canary and canary and (differing := set(service.paths) ^ set(canary.paths)):
            where = f"services.{name}.canary.service: {service.canary.service!r}"
            yield f"{where} has other paths than {name!r} ({', '.join(sorted(differing))})"


def _second_faults(section: GatewaySection) -> Iterator[str]:
    first, second = section.job, section.job.second
    if second is None or second.port not in (None, section.listen.port):
        return
    if not (first.node and second.node) or first.node == second.node:
        yield (
            f"job.second: both gateways may run on the same node and listen on port {section.listen.port}; "
            "name two nodes in job.node and job.second.node, or another port in job.second.port"
        )


def _service_faults(service: ServiceSection) -> Iterator[str]:
    replica, scale = service.replica, service.scale
    try:
        shlex.split(replica.command)
    except ValueError as error:
        yield f"replica.command: {error}, found {replica.command!r}"
    try:
        if shlex.split(replica.worker_command) and replica.nodes == 1:
            yield "replica.worker_command: is for replicas over several nodes, replica.nodes is 1"
    except ValueError as error:
        yield f"replica.worker_command: {error}, found {replica.worker_command!r}"
    for key, path in () if replica.stage is None else asdict(replica.stage).items():
        if not path.is_absolute():
            yield f"replica.stage.{key}: must be an absolute path, found {str(path)!r}"
    if replica.stage is None and MODEL in replica.command:
        yield f"replica.command: {MODEL} is what replica.stage has copied, which is not there"
    if PORT not in replica.command:
        yield f"replica.command: must name the port to listen on as {PORT}, found {replica.command!r}"
    for fault in option_faults(replica.options):
        yield f"replica.options: {fault}"
    for fault in path_faults(service.paths):
        yield f"paths: {fault}"
    request, limit = replica.kernel.request, replica.kernel.limit
    if request is not None and limit is not None and request > limit:
        yield f"replica.kernel.request: {request} is above the limit, {limit}"
    try:
        build(scale.rule, scale.options, service.capacity())
        Bounds(scale.min, scale.max, scale.max_pending)
    except GatewayError as error:
        yield f"scale: {error}"
