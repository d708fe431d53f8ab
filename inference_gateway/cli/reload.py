"""`sexplsched gateway reload`: put an edited services file, or file of keys, in force."""

from __future__ import annotations

import time
from pathlib import Path

import click

from inference_gateway import accepted
from inference_gateway.cli.options import services_option
from inference_gateway.errors import GatewayError
from inference_gateway.replicas.places import Places
from inference_gateway.supervisor import reloading

_POLL_S = 0.2


@click.command()
@services_option
@click.option("--wait", "wait_s", type=float, default=30.0, show_default=True, help="Longest wait for the gateway.")
def reload(services_path: Path, wait_s: float) -> None:
    """Let a running gateway take its services file and keys again. No request is lost; a wrong file changes nothing."""
    section = accepted.read(services_path).section
    places = Places(section.state_directory)
    if not places.gateway.exists():
        raise GatewayError(f"gateway {section.name} is not up")
    request = reloading.ask(places)
    deadline_s = time.monotonic() + wait_s
    while (found := reloading.outcome(places, request)) is None:
        if time.monotonic() > deadline_s:
            raise GatewayError(f"gateway {section.name} does not answer; it takes the file as soon as it can")
        time.sleep(_POLL_S)
    if found.fault:
        raise GatewayError(found.fault)
    click.echo(f"gateway {section.name}: {services_path} is in force")
