"""`sexplsched gateway up`: start a gateway, as a Slurm job or here."""

from __future__ import annotations

import time
from pathlib import Path

import click

from explsched import log
from inference_gateway import accepted, job
from inference_gateway.cli.options import services_option
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.control.settings import settings
from inference_gateway.errors import GatewayError
from inference_gateway.replicas.places import Places
from inference_gateway.supervisor.__main__ import run
from slurm_plugin.client.cli import CliClient

_FRESH_S = 5.0


@click.command()
@services_option
@click.option("--foreground", "place", flag_value="here", help="Run it here, until Ctrl-C; the replicas go on.")
@click.option("-p", "--partition", help="Partition of the gateway job.")
@click.option("-A", "--account", help="Account of the gateway job.")
@click.option("-q", "--qos", help="QOS of the gateway job.")
@click.option("-t", "--time", "time_limit", help="Time limit of the gateway job.")
@click.option("--sbatch", "sbatch", multiple=True, metavar="OPTION", help="Another option for sbatch; repeatable.")
@click.option("--wait", "wait_s", type=float, default=0.0, metavar="SECONDS", help="Wait until it serves.")
@click.option("--dry-run", "place", flag_value="nowhere", help="Show what would be submitted.")
def up(
    *,
    services_path: Path,
    place: str | None,
    partition: str | None,
    account: str | None,
    qos: str | None,
    time_limit: str | None,
    sbatch: tuple[str, ...],
    wait_s: float,
) -> None:
    """Start a gateway as a Slurm job. It stays up over its time limit until `gateway down`."""
    now = accepted.read(services_path)
    section, places = now.section, Places(now.section.state_directory)
    given = (("partition", partition), ("account", account), ("qos", qos), ("time", time_limit))
    extra = (*(f"--{key}={value}" for key, value in given if value), *sbatch)
    if place == "nowhere":
        click.echo(f"# sbatch {' '.join(job.options(section, places, extra, None))}")
        click.echo(job.script(services_path.resolve(), places, extra), nl=False)
        return
    try:
        places.make()
        settings(section, places, Path("/tmp/explsched"), now.keys)  # noqa: S108  only checks the values
    except OSError as error:
        raise GatewayError(f"{error.filename}: {error.strerror}") from error
    shown = state.read(places.status, Report)
    if places.gateway.exists() and shown is not None and time.time() - shown.time_s < _FRESH_S:
        raise GatewayError(f"gateway {section.name} is up already; `gateway down` ends it")
    if place == "here":
        _forget(places)
        log.set_up("info", None)
        run(services_path, extra)
        return
    client = CliClient(section.slurm.timeout_s)
    running = job.jobs(client, section.name)
    if running:
        raise GatewayError(f"gateway {section.name} is up or starting already: job {running[0].job_id}")
    _forget(places)
    before = places.address.stat().st_mtime if places.address.exists() else 0.0
    number = job.submit(client, section, services_path.resolve(), extra)
    click.echo(f"Submitted batch job {number}")
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        if places.address.exists() and places.address.stat().st_mtime > before:
            click.echo(places.address.read_text(encoding="ascii"), nl=False)
            return
        time.sleep(0.5)
    if wait_s:
        raise GatewayError(f"gateway {section.name} does not serve after {wait_s:g} s; see {places.root}/gateway.log")


def _forget(places: Places) -> None:
    """What an earlier gateway of the name was told by commands."""
    for left in (places.closing, places.reload, places.overrides):
        left.unlink(missing_ok=True)
