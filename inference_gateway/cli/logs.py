"""`sexplsched gateway logs`: what happened and why."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import click

from inference_gateway.cli.options import known_service, opened, services_option
from inference_gateway.errors import GatewayError


@click.command()
@services_option
@click.argument("service", required=False)
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1), help="Lines from the end.")
def logs(services_path: Path, service: str | None, lines: int) -> None:
    """Print the gateway's event log (JSON lines), or with SERVICE what its newest replica printed."""
    section, places = opened(services_path)
    path = places.events
    if service is not None:
        known_service(section, service)
        found = (places.root / "replicas").glob(f"{service}-????????/log")
        newest = max(found, key=lambda log: log.stat().st_mtime, default=None)
        if newest is None:
            raise GatewayError(f"{service}: no replica has printed anything yet")
        path = newest
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in deque(file, maxlen=lines):
                click.echo(line, nl=False)
    except OSError as error:
        raise GatewayError(f"{path}: {error.strerror}") from error
