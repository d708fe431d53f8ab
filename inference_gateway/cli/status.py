"""`sexplsched gateway status`: services and replicas of a running gateway."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import click
import msgspec

from explsched.cli.options import json_option
from explsched.cli.tables import Column, lines, room
from inference_gateway.cli.options import opened, services_option
from inference_gateway.control import state
from inference_gateway.control.report import ReplicaReport, Report, ServiceReport
from inference_gateway.errors import GatewayError

_STALE_S = 10.0
_SERVICE = (
    Column("SERVICE"),
    *(Column(title, ">") for title in ("READY", "STARTING", "DRAINING", "DESIRED", "RPS", "BUSY", "QUEUE")),
    Column("REASON"),
)
_REPLICA = (
    *(Column("REPLICA"), Column("PHASE"), Column("JOB", ">"), Column("ADDRESS"), Column("BUSY", ">"), Column("ENDS")),
    Column("REASON"),
)


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
    click.echo("\n".join(lines(_SERVICE, map(_service, shown.services), room())))
    replicas = [_replica(replica) for service in shown.services for replica in service.replicas]
    if replicas:
        click.echo("\n" + "\n".join(lines(_REPLICA, replicas, room())))


def _service(service: ServiceReport) -> tuple[object, ...]:
    counts = (service.serving, service.coming, service.draining, service.wanted)
    load = (service.arrivals, service.in_flight, service.queued)
    return service.name, *counts, *load, "given up after failed starts" if service.given_up else service.reason


def _replica(replica: ReplicaReport) -> tuple[object, ...]:
    where = f"{replica.host}:{replica.port}" if replica.port else None
    ends = datetime.fromtimestamp(replica.ends_s).astimezone().isoformat("T", "seconds") if replica.ends_s else None
    why = ", ".join(filter(None, ("burst" if replica.burst else "", replica.reason)))
    return replica.name, replica.phase, replica.job_id, where, replica.in_flight, ends, why
