"""`sexplsched gateway scale`: a floor under a service's replicas, set by hand."""

from __future__ import annotations

import time
from pathlib import Path

import click

from inference_gateway.cli.options import known_service, opened, services_option
from inference_gateway.control import state
from inference_gateway.control.state import Override
from inference_gateway.errors import GatewayError


@click.command()
@services_option
@click.argument("service")
@click.argument("replicas", type=click.IntRange(0))
def scale(services_path: Path, service: str, replicas: int) -> None:
    """Keep at least REPLICAS replicas of SERVICE, instead of the file's scale.min, until the gateway's `down`.

    Also lets a service start replicas again that has given up after failed starts.
    """
    section, places = opened(services_path)
    known_service(section, service)
    most = section.services[service].scale.max
    if replicas > most:
        raise GatewayError(f"{service}: {replicas} is above services.{service}.scale.max, {most}")
    if not places.root.exists():
        raise GatewayError(f"gateway {section.name} has never been up: {places.root} is missing")
    overrides = state.read(places.overrides, dict[str, Override]) or {}
    if not state.save(places.overrides, {**overrides, service: Override(replicas, time.time())}):
        raise GatewayError(f"{places.overrides}: cannot be written")
    click.echo(f"{service}: at least {replicas} replicas")
