"""`sexplsched gateway address`: where a gateway is reached."""

from __future__ import annotations

from pathlib import Path

import click

from inference_gateway.cli.options import opened, services_option
from inference_gateway.errors import GatewayError


@click.command()
@services_option
def address(services_path: Path) -> None:
    """Print the URL of a running gateway. The file it is read from is named by `gateway services`."""
    section, places = opened(services_path)
    try:
        click.echo(places.address.read_text(encoding="ascii"), nl=False)
    except OSError as error:
        raise GatewayError(f"gateway {section.name} is not up: {places.address}: {error.strerror}") from error
