"""The settings as HAProxy reads them: one configuration file and its maps, as text. No I/O."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import jinja2

from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.settings import GatewaySettings, ServiceSettings, exact, prefixes
from inference_gateway.model import Endpoint
from inference_gateway.queueing import LEAST_READING_S, LOOK_S

ACTIVATOR = "activator"
"""The server of every service's backend that is no replica."""
BACKEND_PREFIX = "service_"

MODEL_AT_END = (
    r"^(?s:.*)[{,]\s*\x22model\x22\s*:\s*\x22([^\x22\x5c]{1,200})\x22"
    r"(?:\s*,\s*\x22\w{1,64}\x22\s*:\s*(?:\x22[^\x22\x5c]{0,64}\x22|[-+.\w]{1,64})){0,12}\s*}\s*$"
)
"""A JSON object that ends with a text `model` and a few members of plain text, numbers, true, false or null (PCRE).

The last brace of a JSON object closes it, so members right before it are its own. A quote within a text is written
with a backslash, and the expression has room for none: in JSON it matches nothing but members.
"""


@dataclass(frozen=True, slots=True)
class Tail:
    """Bodies of `least` to `most` bytes are searched for `model` without their first `skipped` bytes."""

    skipped: int
    least: int
    most: int


_TAIL_BYTES = 320
"""At least so much of the end of a body is searched; what does not fit is found by the JSON parser."""
_MAXREWRITE_BYTES = 4096
_HEADERS_BYTES = 8192


def model_tails(buffer_bytes: int) -> list[Tail]:
    """What to search of a body, by its length: all of a short one, and of others the end.

    That is of `length` bytes between 320 and 320 + 12 * sqrt(length).
    HAProxy's `bytes` takes constants only, so there is an entry for each length's range. Passing one over costs as much
    as searching 75 bytes does, so that ranges which grow with the root of the length cost least. A body that may
    have been cut has no end to search: beside it a buffer has headers and the 4 KiB that HAProxy keeps free.
    """
    longest = buffer_bytes - _MAXREWRITE_BYTES - _HEADERS_BYTES
    bounds = [0, 3 * _TAIL_BYTES]
    while bounds[-1] <= longest:
        bounds.append(bounds[-1] + 12 * math.isqrt(bounds[-1]))
    return [
        Tail(max(0, least - _TAIL_BYTES), least, min(following - 1, longest)) for least, following in pairwise(bounds)
    ]


_TEMPLATE = jinja2.Environment(
    loader=jinja2.PackageLoader("inference_gateway.dataplane", ""),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701  HAProxy's configuration is no HTML; settings.py holds values to an alphabet
)


@dataclass(frozen=True, slots=True)
class Affinity:
    """How requests that begin alike find the same replica.

    A replica takes up to `factor_percent` of the mean of all. The beginning is the longest of `steps_bytes` that a body
    has, so that the next turn of a conversation, which is longer, mostly has the same one; bodies shorter than all are
    spread. With weight 1 a replica has 16 places on the ring, which are then far from even.
    """

    factor_percent: int = 200
    steps_bytes: tuple[int, ...] = (8192, 2048, 512)
    weight: int = 8


AFFINITY = Affinity()


def ms_per_byte(bytes_per_s: float) -> float:
    """How long a replica that reads so much takes for a byte of a body; 0 while nobody knows."""
    return 1000 / bytes_per_s if bytes_per_s else 0.0


def long_from(bytes_per_s: float) -> int:
    """From how many bytes on a body is long, where it is known what a replica reads."""
    return round(LEAST_READING_S * bytes_per_s)


_TEMPLATE.globals |= {"look_s": LOOK_S, "ms_per_byte": ms_per_byte, "affinity": AFFINITY} | {
    name: getattr(_TEMPLATE.get_template("macros.j2").module, name) for name in ("answer", "ms", "problem")
}


def server_arguments(
    settings: GatewaySettings, service: ServiceSettings, endpoint: Endpoint, version: tuple[int, int]
) -> str:
    """What follows a replica's name in `add server`, which knows no defaults, in that version of HAProxy.

    HAProxy 3.4 else tells the replica what host a client has asked for (SNI), and connects to no server of this kind.
    """
    unnamed = " no-sni-auto no-check-sni-auto" if version >= (3, 4) else ""
    proof = f" check-ssl{_proof(settings)}{unnamed}" if settings.trust else ""
    return f"{_address(settings, endpoint)}{_ring_id(service, endpoint)} {_watch(service)}{proof}"


def trust(settings: GatewaySettings) -> dict[Path, str]:
    """The certificates of the settings, by where they lie."""
    files = Files(settings.directory)
    if settings.trust is None:
        return {}
    return {files.authority: settings.trust.authority, files.gateway_certificate: settings.trust.certificate}


def render(
    settings: GatewaySettings,
    endpoints: Mapping[str, Sequence[Endpoint]],
    connections: int,
    certificate_version: str = "",
) -> str:
    """HAProxy's configuration, with the replicas of each service that take requests now, for so many clients.

    `certificate_version` changes with the certificate's file: another configuration, which is another reason to reload.
    """
    files = Files(settings.directory)
    services = (
        _service(service, files, settings.authentication, _proof(settings))
        + _replicas(settings, service, endpoints.get(service.name, ()))
        for service in settings.services
    )
    return _TEMPLATE.get_template("haproxy.cfg.j2").render(
        settings=settings,
        files=files,
        connections=connections,
        proof=_proof(settings),
        of_one_source=settings.of_one_source(connections),
        certificate_version=certificate_version,
        services="".join(services),
        limited=any(key.requests_per_minute is not None for key in settings.keys),
        restricted=any(key.services for key in settings.keys),
        expiring=any(key.expires_s is not None for key in settings.keys),
        metered=any(key.metered for key in settings.keys),
        paths=exact(_all_paths(settings)),
        prefixes=prefixes(_all_paths(settings)),
        narrowed=bool(_narrow(settings)),
        maxrewrite_bytes=_MAXREWRITE_BYTES,
        model_tails=model_tails(settings.body_buffer_kib * 1024),
        # HAProxy takes a backslash and a dollar away where a text stands in double quotes.
        model_at_end=MODEL_AT_END.replace("\\", "\\\\").replace("$", "\\$"),
    )


def _all_paths(settings: GatewaySettings) -> frozenset[str]:
    return frozenset(path for service in settings.services for path in service.paths)


def _narrow(settings: GatewaySettings) -> list[ServiceSettings]:
    """The services that have not all the paths that any has."""
    everywhere = _all_paths(settings)
    return [service for service in settings.services if frozenset(service.paths) != everywhere]


@lru_cache(maxsize=10_000)
def _service(service: ServiceSettings, files: Files, authentication: str, proof: str) -> str:
    """A service's part without its replicas. Remembered: of a thousand services few change at a time."""
    return _TEMPLATE.get_template("service.cfg.j2").render(
        service=service, files=files, authentication=authentication, watch=_watch(service) + proof, proof=proof
    )


def _replicas(settings: GatewaySettings, service: ServiceSettings, endpoints: Sequence[Endpoint]) -> str:
    return "".join(
        f"    server {endpoint.name} {_address(settings, endpoint)}{_ring_id(service, endpoint)}\n"
        for endpoint in endpoints
    )


def _ring_id(service: ServiceSettings, endpoint: Endpoint) -> str:
    """What a replica's places on the ring are made from, where there is one: the same after a reload.

    HAProxy 2.6 gives a server that is added at run time a number only after it has made the places, so that without
    this all such servers have the same ones, and of three the second gets nothing.
    """
    return f" id {zlib.crc32(endpoint.name.encode()) >> 1 or 1}" if service.affinity == "prefix" else ""


def _address(settings: GatewaySettings, endpoint: Endpoint) -> str:
    name = f" verifyhost {endpoint.name}" if settings.trust else ""
    return f"{endpoint.address} maxconn {endpoint.concurrency}{name}"


def _proof(settings: GatewaySettings) -> str:
    """What HAProxy asks of replicas, and shows to them, before it sends anything."""
    files = Files(settings.directory)
    if settings.trust is None:
        return ""
    return f" ssl verify required ca-file {files.authority} crt {files.gateway_certificate}"


def _watch(service: ServiceSettings) -> str:
    health = service.health
    weight = f" weight {AFFINITY.weight}" if service.affinity == "prefix" else ""
    return (
        f"check inter {round(health.interval_s * 1000)}ms fall {health.fall} rise {health.rise} "
        f"observe layer7 error-limit {health.error_limit} on-error mark-down "
        # Without its words a dynamic server of HAProxy 2.6 keeps no idle connections: three times the CPU per request.
        f"pool-max-conn -1 pool-purge-delay 5s{weight}"
    )


def maps(settings: GatewaySettings) -> dict[Path, str]:
    """The map files of the settings, by where they lie."""
    files = Files(settings.directory)
    restricted = [key for key in settings.keys if key.services]
    narrow = _narrow(settings)
    return {
        files.keys: _lines((key.digest, key.name) for key in settings.keys),
        files.limits: _lines(
            (key.name, str(key.requests_per_minute)) for key in settings.keys if key.requests_per_minute is not None
        ),
        files.expiries: _lines((key.name, str(key.expires_s)) for key in settings.keys if key.expires_s is not None),
        # The control plane tells at run time who has used up what.
        files.spent: "",
        files.weights: _lines((key.name, str(key.weight)) for key in settings.keys if key.weight > 1),
        files.batch: _lines((key.name, "1") for key in settings.keys if key.priority == "batch"),
        files.restricted: _lines((key.name, key.services[0]) for key in restricted),
        files.grants: _lines((f"{key.name}/{service}", "1") for key in restricted for service in key.services),
        files.narrow: _lines((service.name, "1") for service in narrow),
        files.paths: _lines((service.name + path, "1") for service in narrow for path in exact(service.paths)),
        files.prefixes: _lines(
            (service.name + prefix, "1") for service in narrow for prefix in prefixes(service.paths)
        ),
        files.models: _lines((model, service.name) for service in settings.services for model in service.served_models),
        # What is measured is told at run time, too.
        files.long_from: _lines(
            (service.name, str(long_from(service.body_bytes_per_s)))
            for service in settings.services
            if service.spreads_prompts and service.body_bytes_per_s
        ),
        files.read_until: "",
        files.retry_after: _lines((service.name, str(service.retry_after_s)) for service in settings.services),
    }


def _lines(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f"{key} {value}\n" for key, value in pairs)
