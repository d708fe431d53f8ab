"""The command group `sexplsched gateway` and what its commands share. The commands are registered as entry points."""

from __future__ import annotations

from pathlib import Path

import click

from explsched.cli import RegisteredCommands
from explsched.entry_points import GATEWAY_COMMANDS
from explsched.errors import UnknownNameError
from explsched.strict_yaml import ConfigError
from inference_gateway import accepted, services
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.sections import GatewaySection

_EXAMPLES = """\b
examples:
  sexplsched gateway up --services services.yaml
  sexplsched gateway status --services services.yaml
  sexplsched gateway scale --services services.yaml NAME 2
"""


@click.group(cls=RegisteredCommands, entry_point_group=GATEWAY_COMMANDS, epilog=_EXAMPLES)
def gateway() -> None:
    """Serve models from replica jobs, as many as the requests need."""


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


def opened(services_path: Path) -> tuple[GatewaySection, GatewayPaths]:
    """The services file, read, and the paths of the gateway's files. Raises `ConfigError`."""
    section = services.load(services_path)
    return section, GatewayPaths(section.state_directory)


def opened_in_force(services_path: Path) -> tuple[GatewaySection, GatewayPaths]:
    """As `opened`, for a gateway that may run: if the file has a fault, by the file that was last accepted."""
    try:
        return opened(services_path)
    except ConfigError as error:
        paths = GatewayPaths(services.directory_of(services_path))
        section = accepted.section_in_force(paths, services_path)
        if section is None:
            there = f"{paths.accepted} has no file that was accepted from {services_path}, by which to go"
            raise ConfigError(f"{error}\n{there}") from error
        click.echo(f"{error}\ngoing by the accepted file, in {paths.accepted}", err=True)
        return section, paths


def known_service(section: GatewaySection, name: str) -> None:
    """Raise `UnknownNameError` unless the services file defines this service."""
    if name not in section.services:
        raise UnknownNameError("service", name, section.services)
