"""What the gateway's commands share: which gateway is meant, and its files."""

from __future__ import annotations

from pathlib import Path

import click

from inference_gateway import services
from inference_gateway.errors import GatewayError
from inference_gateway.replicas.places import Places
from inference_gateway.sections import GatewaySection

services_option = click.option(
    "-s",
    "--services",
    "services_path",
    required=True,
    envvar="SEXPLSCHED_GATEWAY_SERVICES",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="Services file (YAML).",
)


def opened(services_path: Path) -> tuple[GatewaySection, Places]:
    """The services file and the gateway's files. Raises `ConfigError`."""
    section = services.load(services_path)
    return section, Places(section.state_directory)


def known_service(section: GatewaySection, name: str) -> None:
    """Raise `GatewayError` unless the file has this service."""
    if name not in section.services:
        raise GatewayError(f"no service {name!r} (known: {', '.join(section.services)})")
