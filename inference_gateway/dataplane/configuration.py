"""Renders the settings as HAProxy's configuration file and maps. No I/O."""

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
from inference_gateway.dataplane.open_paths import exact, prefixes
from inference_gateway.dataplane.settings import GatewaySettings, ServiceSettings
from inference_gateway.model import Endpoint
from inference_gateway.queueing import LEAST_READING_S, LOOK_S

ACTIVATOR = "activator"
"""The server in every service's backend that is not a replica."""
BACKEND_PREFIX = "service_"

MODEL_AT_END = (
    r"^(?s:.*)[{,]\s*\x22model\x22\s*:\s*\x22([^\x22\x5c]{1,200})\x22"
    r"(?:\s*,\s*\x22\w{1,64}\x22\s*:\s*(?:\x22[^\x22\x5c]{0,64}\x22|[-+.\w]{1,64})){0,12}\s*}\s*$"
)
"""PCRE for a JSON object that ends with a string `model` and at most a few members with scalar values.

The last brace of a JSON object closes it, so the members just before it are its own. A quote within a JSON string
follows a backslash, which the expression does not allow, so it matches only members.
"""


@dataclass(frozen=True, slots=True)
class Tail:
    """Bodies of `least` to `most` bytes are searched for `model` from the byte `skipped` on."""

    skipped: int
    least: int
    most: int


_TAIL_BYTES = 320
"""At least this much of the end of a body is searched; otherwise the activator's JSON parser finds the model."""
_MAXREWRITE_BYTES = 4096
_HEADERS_BYTES = 8192


def model_tails(buffer_bytes: int) -> list[Tail]:
    """The part of a body to search, by its length: all of a short body, and the end of a longer one.

    The end is between 320 and 320 + 12 * sqrt(length) bytes. HAProxy's `bytes` takes only constants, so there is one
    entry per range of lengths. Skipping an entry costs as much as searching 75 bytes, so ranges that grow with the
    square root of the length are cheapest. A body that may have been truncated is not searched: the buffer also holds
    the headers and the 4 KiB that HAProxy keeps free.
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
    """How requests with the same prefix are sent to the same replica (consistent hashing with bounded loads).

    A replica takes at most `factor_percent` of the mean load. The prefix is the longest of `steps_bytes` that fits the
    body, so that the next, longer turn of a conversation mostly has the same one; shorter bodies are spread evenly.
    With weight 1 a replica has 16 points on the ring, which are spread too unevenly.
    """

    factor_percent: int = 200
    steps_bytes: tuple[int, ...] = (8192, 2048, 512)
    weight: int = 8


AFFINITY = Affinity()


def ms_per_byte(bytes_per_s: float) -> float:
    """Milliseconds that a replica takes to read a byte of a body; 0 if the rate is unknown (0)."""
    return 1000 / bytes_per_s if bytes_per_s else 0.0


def long_from(bytes_per_s: float) -> int:
    """The size in bytes from which a body is long, for a known reading rate."""
    return round(LEAST_READING_S * bytes_per_s)


_TEMPLATE.globals |= {"look_s": LOOK_S, "ms_per_byte": ms_per_byte, "affinity": AFFINITY} | {
    name: getattr(_TEMPLATE.get_template("macros.j2").module, name) for name in ("answer", "ms", "problem")
}


def server_arguments(
    settings: GatewaySettings, service: ServiceSettings, endpoint: Endpoint, version: tuple[int, int]
) -> str:
    """The arguments after a replica's name in `add server`, which ignores `default-server`, for this HAProxy version.

    HAProxy 3.4 would otherwise send the client's host as SNI and then fail to connect to such a server.
    """
    unnamed = " no-sni-auto no-check-sni-auto" if version >= (3, 4) else ""
    proof = f" check-ssl{_proof(settings)}{unnamed}" if settings.trust else ""
    return f"{_address(settings, endpoint)}{_ring_id(service, endpoint)} {_watch(service)}{proof}"


def certificates(settings: GatewaySettings) -> dict[Path, str]:
    """The certificates of the settings, by file."""
    files = Files(settings.directory)
    found = {files.certificate: settings.certificate} if isinstance(settings.certificate, str) else {}
    if settings.trust is not None:
        found |= {files.authority: settings.trust.authority, files.gateway_certificate: settings.trust.certificate}
    return found


def render(
    settings: GatewaySettings,
    endpoints: Mapping[str, Sequence[Endpoint]],
    connections: int,
    certificate_version: str = "",
) -> str:
    """HAProxy's configuration for `connections` clients, with the replicas that take requests now (`endpoints`).

    `certificate_version` changes with a certificate that is given by its path, and so causes a reload.
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
        certificate_version=certificate_version,
        proof=_proof(settings),
        of_one_source=settings.of_one_source(connections),
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
        # In a double-quoted string HAProxy interprets backslashes and dollar signs.
        model_at_end=MODEL_AT_END.replace("\\", "\\\\").replace("$", "\\$"),
    )


def _all_paths(settings: GatewaySettings) -> frozenset[str]:
    return frozenset(path for service in settings.services for path in service.paths)


def _narrow(settings: GatewaySettings) -> list[ServiceSettings]:
    """The services that lack a path which another service has."""
    everywhere = _all_paths(settings)
    return [service for service in settings.services if frozenset(service.paths) != everywhere]


@lru_cache(maxsize=10_000)
def _service(service: ServiceSettings, files: Files, authentication: str, proof: str) -> str:
    """A service's part without its replicas. Cached, because few of a thousand services change at a time."""
    return _TEMPLATE.get_template("service.cfg.j2").render(
        service=service, files=files, authentication=authentication, watch=_watch(service) + proof, proof=proof
    )


def _replicas(settings: GatewaySettings, service: ServiceSettings, endpoints: Sequence[Endpoint]) -> str:
    return "".join(
        f"    server {endpoint.name} {_address(settings, endpoint)}{_ring_id(service, endpoint)}\n"
        for endpoint in endpoints
    )


def _ring_id(service: ServiceSettings, endpoint: Endpoint) -> str:
    """The server id from which a replica's points on the hash ring are made; it is the same after a reload.

    HAProxy 2.6 numbers a server that is added at run time only after it has made the points: without an explicit id all
    such servers have the same points, and of three the second gets no requests.
    """
    return f" id {zlib.crc32(endpoint.name.encode()) >> 1 or 1}" if service.affinity == "prefix" else ""


def _address(settings: GatewaySettings, endpoint: Endpoint) -> str:
    name = f" verifyhost {endpoint.name}" if settings.trust else ""
    return f"{endpoint.address} maxconn {endpoint.concurrency}{name}"


def _proof(settings: GatewaySettings) -> str:
    """The TLS options of a replica: the authority that must have signed its certificate, and the gateway's own."""
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
        # Without these a dynamic server of HAProxy 2.6 keeps no idle connections: three times the CPU per request.
        f"pool-max-conn -1 pool-purge-delay 5s{weight}"
    )


def maps(settings: GatewaySettings) -> dict[Path, str]:
    """The contents of the map files, by file."""
    files = Files(settings.directory)
    restricted = [key for key in settings.keys if key.services]
    narrow = _narrow(settings)
    return {
        files.keys: _lines((key.digest, key.name) for key in settings.keys),
        files.limits: _lines(
            (key.name, str(key.requests_per_minute)) for key in settings.keys if key.requests_per_minute is not None
        ),
        files.expiries: _lines((key.name, str(key.expires_s)) for key in settings.keys if key.expires_s is not None),
        # Filled at run time by the control plane.
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
        # Measured rates are added at run time.
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
