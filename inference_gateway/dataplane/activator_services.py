"""What the activator has to know of each service, in a file that the data plane writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.errors import ActivatorError


class HeldService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service with its bounds; see `ServiceSettings`."""

    name: str
    models: tuple[str, ...]
    limit: int
    deadline_s: float
    response_timeout_s: float
    retry_after_s: int
    floor_share: float
    ejection_s: float


def text_of(services: Iterable[ServiceSettings]) -> str:
    """The file's text."""
    held = [
        HeldService(
            name=service.name,
            models=service.served_models,
            limit=service.cold_start_limit,
            deadline_s=service.cold_start_deadline_s,
            response_timeout_s=service.response_timeout_s,
            retry_after_s=service.retry_after_s,
            floor_share=service.health.floor_share,
            ejection_s=service.health.ejection_s,
        )
        for service in services
    ]
    return msgspec.json.encode(held).decode()


def read(path: Path) -> dict[str, HeldService]:
    """The services by name. Raises `ActivatorError`."""
    try:
        services = msgspec.json.decode(path.read_bytes(), type=tuple[HeldService, ...])
    except (OSError, msgspec.MsgspecError) as error:
        raise ActivatorError(f"{path}: cannot be read: {error}") from error
    return {service.name: service for service in services}
