"""`sexplsched gateway status`: services and replicas of a running gateway."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import click
import msgspec

from explsched.cli.options import json_option
from inference_gateway.cli.options import opened, services_option
from inference_gateway.control import state
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.errors import GatewayError

_STALE_S = 10.0


@click.command()
@services_option
@json_option
def status(*, services_path: Path, as_json: bool) -> None:
    """Show the services of a gateway and their replicas. Exits 1 if its control plane does not report."""
    section, places = opened(services_path)
    shown = state.read(places.status, Report)
    if shown is None:
        raise GatewayError(f"gateway {section.name} has not reported yet: {places.status} is missing")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=1).decode())
    else:
        _print(shown, places.address.read_text(encoding="ascii").strip() if places.address.exists() else "not up")
    age_s = time.time() - shown.time_s
    if age_s > _STALE_S:
        click.echo(f"the control plane has not reported for {age_s:.0f} s", err=True)
        raise click.exceptions.Exit(1)


def _print(shown: Report, url: str) -> None:
    click.echo(f"gateway {shown.gateway}: {url}{', closing' if shown.closing else ''}")
    heading = ("SERVICE", "SERVE", "COME", "DRAIN", "WANT", "RPS", "BUSY", "QUEUE", "REASON")
    click.echo("{:<20} {:>5} {:>5} {:>5} {:>5} {:>6} {:>6} {:>6} {}".format(*heading))
    for service in shown.services:
        wanted = "-" if service.wanted is None else service.wanted
        counts = (service.serving, service.coming, service.draining, wanted)
        load = (service.arrivals, service.in_flight, service.queued)
        why = "given up after failed starts" if service.given_up else service.reason
        click.echo("{:<20} {:>5} {:>5} {:>5} {:>5} {:>6} {:>6} {:>6} {}".format(service.name, *counts, *load, why))
    for service in shown.services:
        _print_replicas(service)


def _print_replicas(service: ServiceReport) -> None:
    for replica in service.replicas:
        where = f"{replica.host}:{replica.port}" if replica.port else "-"
        ends = datetime.fromtimestamp(replica.ends_s).astimezone().isoformat("T", "seconds") if replica.ends_s else "-"
        job = "-" if replica.job_id is None else str(replica.job_id)
        click.echo(
            f"  {replica.name:<30} {replica.phase:<10} job {job:<8} {where:<22} busy {replica.in_flight:<4} ends {ends}"
            f"{'  burst' if replica.burst else ''}{'  ' + replica.reason if replica.reason else ''}"
        )
