"""`sexplsched gateway up`, `down`, `reload`, `scale`: start a gateway, end it, and change it while it runs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from explsched import log
from inference_gateway import accepted
from inference_gateway.cli import known_service, opened, services_option
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.control.state import Override
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas.submission import prefix
from inference_gateway.supervisor import jobs, reloading
from inference_gateway.supervisor.loop import run
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
    given = (("partition", partition), ("account", account), ("qos", qos), ("time", time_limit))
    extra = (*(f"--{key}={value}" for key, value in given if value), *sbatch)
    if place == "nowhere":
        click.echo(f"# sbatch {' '.join(jobs.options(now, extra, None))}")
        click.echo(jobs.script(now, extra), nl=False)
        return
    try:
        now.check()
    except OSError as error:
        raise GatewayError(f"{error.filename}: {error.strerror}") from error
    shown = state.read(now.paths.status, Report)
    if now.paths.gateway.exists() and shown is not None and time.time() - shown.time_s < _FRESH_S:
        raise GatewayError(f"gateway {now.section.name} is up already; `gateway down` ends it")
    if place == "here":
        state.forget_requests(now.paths)
        log.set_up("info", None)
        run(now, extra)
        return
    before = _announced_s(now.paths)
    for job_id in jobs.start(CliClient(now.section.slurm.timeout_s), now, extra):
        click.echo(f"Submitted batch job {job_id}")
    addresses = 1 if now.section.job.second is None else len(now.paths.slots)
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        if _announced_s(now.paths) > before and len(now.paths.address.read_text(encoding="ascii").split()) == addresses:
            click.echo(now.paths.address.read_text(encoding="ascii"), nl=False)
            return
        time.sleep(0.5)
    if wait_s:
        where = now.paths.root / "gateway.log"
        raise GatewayError(f"gateway {now.section.name} does not serve after {wait_s:g} s; see {where}")


def _announced_s(paths: GatewayPaths) -> float:
    """When the address file was written, since the epoch; 0 if there is none."""
    return paths.address.stat().st_mtime if paths.address.exists() else 0.0


_MARGIN_S = 30.0
_POLL_S = 1.0


@click.command()
@services_option
@click.option("--now", "how", flag_value="now", help="Cancel at once; requests in flight are lost.")
def down(services_path: Path, how: str | None) -> None:
    """Drain and cancel all replicas, then the gateway."""
    section, paths = opened(services_path)
    client = CliClient(section.slurm.timeout_s)
    gateways = jobs.active_jobs(client, section.name)
    jobs.cancel(client, [found.job_id for found in gateways if found.state == "PENDING"])
    shown = state.read(paths.status, Report)
    controlled = shown is not None and time.time() - shown.time_s < _MARGIN_S
    try:
        if paths.root.exists():
            paths.closing.touch()
    except OSError as error:
        raise GatewayError(f"{paths.closing}: {error.strerror}") from error
    if how != "now" and controlled:
        longest_s = max(service.drain_deadline_s for service in section.services.values())
        deadline_s = time.monotonic() + longest_s + _MARGIN_S
        while time.monotonic() < deadline_s and _replicas(client, section.name):
            time.sleep(_POLL_S)
        while time.monotonic() < deadline_s and any(own.gateway.exists() for own in paths.slots):
            time.sleep(_POLL_S)  # the supervisor ends by itself when its control plane has nothing left
    left = _replicas(client, section.name)
    jobs.cancel(client, [*left, *(found.job_id for found in jobs.active_jobs(client, section.name))])
    click.echo(f"gateway {section.name}: down" + (f", {len(left)} replicas cancelled undrained" if left else ""))


def _replicas(client: CliClient, gateway: str) -> list[int]:
    return [found.job_id for found in client.tagged_jobs(prefix(gateway)) if found.state in jobs.ACTIVE]


_ANSWER_POLL_S = 0.2


@click.command()
@services_option
@click.option("--wait", "wait_s", type=float, default=30.0, show_default=True, help="Longest wait for the gateway.")
def reload(services_path: Path, wait_s: float) -> None:
    """Let a running gateway take its services file and keys again. No request is lost; a wrong file changes nothing."""
    now = accepted.read(services_path)
    section, paths = now.section, now.paths
    present = [own for own in paths.slots if own.gateway.exists()]
    if not present:
        raise GatewayError(f"gateway {section.name} is not up")
    asked = [(own, reloading.ask(own)) for own in present]
    deadline_s = time.monotonic() + wait_s
    for own, request in asked:
        while (found := reloading.outcome(own, request)) is None:
            if time.monotonic() > deadline_s:
                raise GatewayError(f"gateway {section.name} does not answer; it takes the file as soon as it can")
            time.sleep(_ANSWER_POLL_S)
        if found.fault:
            raise GatewayError(found.fault)
    click.echo(f"gateway {section.name}: {services_path} is in force")


@click.command()
@services_option
@click.argument("service")
@click.argument("replicas", type=click.IntRange(0))
def scale(services_path: Path, service: str, replicas: int) -> None:
    """Keep at least REPLICAS replicas of SERVICE, instead of the file's scale.min, until the gateway's `down`.

    Also lets a service start replicas again that has given up after failed starts.
    """
    section, paths = opened(services_path)
    known_service(section, service)
    most = section.services[service].scale.max
    if replicas > most:
        raise GatewayError(f"{service}: {replicas} is above services.{service}.scale.max, {most}")
    if not paths.root.exists():
        raise GatewayError(f"gateway {section.name} has never been up: {paths.root} is missing")
    overrides = state.read(paths.overrides, dict[str, Override]) or {}
    if not state.save(paths.overrides, {**overrides, service: Override(replicas, time.time())}):
        raise GatewayError(f"{paths.overrides}: cannot be written")
    click.echo(f"{service}: at least {replicas} replicas")
