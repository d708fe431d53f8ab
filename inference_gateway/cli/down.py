"""`sexplsched gateway down`: let a gateway and its replicas finish, and end them."""

from __future__ import annotations

import time
from pathlib import Path

import click

from inference_gateway import job
from inference_gateway.cli.options import opened, services_option
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.errors import GatewayError
from inference_gateway.replicas.submission import prefix
from slurm_plugin.client.cli import CliClient

_MARGIN_S = 30.0
_POLL_S = 1.0


@click.command()
@services_option
@click.option("--now", "how", flag_value="now", help="Cancel at once; requests in flight are lost.")
def down(services_path: Path, how: str | None) -> None:
    """Drain and cancel all replicas, then the gateway."""
    section, places = opened(services_path)
    client = CliClient(section.slurm.timeout_s)
    gateways = job.jobs(client, section.name)
    job.cancel(client, [found.job_id for found in gateways if found.state == "PENDING"])
    shown = state.read(places.status, Report)
    controlled = shown is not None and time.time() - shown.time_s < _MARGIN_S
    try:
        if places.root.exists():
            places.closing.touch()
    except OSError as error:
        raise GatewayError(f"{places.closing}: {error.strerror}") from error
    if how != "now" and controlled:
        longest_s = max(service.drain_deadline_s for service in section.services.values())
        deadline_s = time.monotonic() + longest_s + _MARGIN_S
        while time.monotonic() < deadline_s and _replicas(client, section.name):
            time.sleep(_POLL_S)
        while time.monotonic() < deadline_s and places.gateway.exists():
            time.sleep(_POLL_S)  # the supervisor ends by itself when its control plane has nothing left
    left = _replicas(client, section.name)
    job.cancel(client, [*left, *(found.job_id for found in job.jobs(client, section.name))])
    click.echo(f"gateway {section.name}: down" + (f", {len(left)} replicas cancelled undrained" if left else ""))


def _replicas(client: CliClient, gateway: str) -> list[int]:
    return [found.job_id for found in client.tagged_jobs(prefix(gateway)) if found.state in job.ACTIVE]
