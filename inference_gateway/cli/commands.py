"""The commands of `sexplsched gateway` for a whole gateway: start, stop, change and inspect it."""

from __future__ import annotations

import json
import time
from collections import deque
from datetime import datetime
from pathlib import Path

import click
import msgspec

from explsched import log
from explsched.cli import alternative, examples, json_option, keys_option
from explsched.tables import Column, lines, room
from inference_gateway import accepted
from inference_gateway.cli import keepalived, known_service, opened, opened_in_force, services_option
from inference_gateway.control import state
from inference_gateway.control.replica import ACTIVE, OF_REMOVED
from inference_gateway.control.report import ReplicaReport, Report, ServiceReport
from inference_gateway.control.state import Override
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ReplicaLoad
from inference_gateway.replicas.submission import prefix
from inference_gateway.services import keys, option_faults
from inference_gateway.supervisor import jobs, reloads
from inference_gateway.supervisor.loop import run
from slurm_plugin.client.cli import CliClient

_FRESH_S = 5.0


@click.command(
    epilog=examples(
        "sexplsched gateway up -s services.yaml --wait 60", "sexplsched gateway up -s services.yaml --dry-run"
    )
)
@services_option
@alternative("--foreground", "place", "here", "Run in the foreground until Ctrl-C; replicas keep running.")
@click.option("-p", "--partition", help="Partition of the gateway job.")
@click.option("-A", "--account", help="Account of the gateway job.")
@click.option("-q", "--qos", help="QOS of the gateway job.")
@click.option("-t", "--time", "time_limit", help="Time limit of the gateway job.")
@click.option("--sbatch", "sbatch", multiple=True, metavar="OPTION", help="Another option for sbatch; repeatable.")
@click.option("--wait", "wait_s", type=float, default=0.0, metavar="SECONDS", help="Wait until it serves.")
@alternative("--dry-run", "place", "nowhere", "Show what would be submitted.")
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
    """Start a gateway as a Slurm job. At its time limit a successor job takes over."""
    now = accepted.read(services_path)
    for fault in option_faults(sbatch):
        raise GatewayError(f"--sbatch: {fault}")
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
        raise GatewayError(f"gateway {now.section.name} is up (`gateway down` ends it), or has just ended: try again")
    client = CliClient(now.section.slurm.timeout_s)
    if place == "here":
        jobs.begin_here(client, now)
        log.set_up("info", None)
        run(now, extra)
        return
    before = _announced_s(now.paths)
    for job_id in jobs.start(client, now, extra):
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


@click.command(epilog=examples("sexplsched gateway down -s services.yaml"))
@services_option
@click.option("--now", "how", flag_value="now", help="Cancel at once; requests in flight are lost.")
def down(services_path: Path, how: str | None) -> None:
    """Drain and cancel all replicas, then the gateway."""
    section, paths = opened_in_force(services_path)
    client = CliClient(section.slurm.timeout_s)
    gateways = jobs.active_jobs(client, section.name)
    shown = state.read(paths.status, Report)
    is_here = paths.root.exists() and (shown is None or shown.gateway == section.name)
    if not (is_here or gateways or _replicas(client, section.name)):
        other = f", which is of gateway {shown.gateway}" if shown else ""
        raise GatewayError(f"gateway {section.name} is not up: it has no job, and nothing in {paths.root}{other}")
    jobs.cancel(client, [found.job_id for found in gateways if found.state == "PENDING"])
    controlled = shown is not None and time.time() - shown.time_s < _MARGIN_S
    try:
        if paths.root.exists():
            paths.closing.touch()
    except OSError as error:
        raise GatewayError(f"{paths.closing}: {error.strerror}") from error
    if how != "now" and shown is not None and controlled:
        deadlines_s = [service.drain_deadline_s for service in section.services.values()]
        longest_s = max([*deadlines_s, *(OF_REMOVED.drain_deadline_s for _ in shown.removed)])
        deadline_s = time.monotonic() + longest_s + _MARGIN_S
        while time.monotonic() < deadline_s and _drains(paths) and _replicas(client, section.name):
            time.sleep(_POLL_S)
        while time.monotonic() < deadline_s and _drains(paths):
            time.sleep(_POLL_S)  # the supervisor ends by itself when all replicas are gone
    left = _end(client, section.name, paths)
    if left is None:
        click.echo(f"gateway {section.name}: down, and up again by another command")
    else:
        click.echo(f"gateway {section.name}: down" + (f", {left} replicas cancelled undrained" if left else ""))


def _drains(paths: GatewayPaths) -> bool:
    """Whether a supervisor drains its replicas; one that has ended, for instance by Ctrl-C in the foreground, does not.

    Nor does one that `gateway up` has started meanwhile, which takes back that the gateway is to close.
    """
    return paths.closing.exists() and any(own.gateway.exists() for own in paths.slots)


def _end(client: CliClient, gateway: str, paths: GatewayPaths) -> int | None:
    """Cancel what is left, and return the number of replicas; None if another gateway has been started meanwhile."""
    if not paths.root.exists():
        return _cancel_all(client, gateway)
    while paths.closing.exists():
        with state.locked(paths.start_lock) as ours:  # no `gateway up` submits anything until we are through
            if ours and paths.closing.exists():
                return _cancel_all(client, gateway)
        time.sleep(_POLL_S)
    return None


def _cancel_all(client: CliClient, gateway: str) -> int:
    left = _replicas(client, gateway)
    found = (*client.tagged_jobs(prefix(gateway)), *jobs.listed_jobs(client, gateway))
    # One that Slurm requeues is COMPLETING at first, and would wait and run again.
    jobs.cancel(client, [job.job_id for job in found if job.state in ACTIVE or job.state == "COMPLETING"])
    return len(left)


def _replicas(client: CliClient, gateway: str) -> list[int]:
    return [found.job_id for found in client.tagged_jobs(prefix(gateway)) if found.state in ACTIVE]


_ANSWER_POLL_S = 0.2


@click.command(epilog=examples("sexplsched gateway reload -s services.yaml"))
@services_option
@click.option("--wait", "wait_s", type=float, default=30.0, show_default=True, help="Seconds to wait for the gateway.")
def reload(services_path: Path, wait_s: float) -> None:
    """Reload the services file and keys of a running gateway. No request is lost; an invalid file changes nothing."""
    now = accepted.read(services_path)
    section, paths = now.section, now.paths
    present = [own for own in paths.slots if own.gateway.exists()]
    if not present:
        raise GatewayError(f"gateway {section.name} is not up")
    asked = [(own, reloads.ask(own)) for own in present]
    deadline_s = time.monotonic() + wait_s
    for own, request in asked:
        while (found := reloads.outcome(own, request)) is None:
            if time.monotonic() > deadline_s:
                raise GatewayError(f"gateway {section.name} does not answer; it takes the file as soon as it can")
            time.sleep(_ANSWER_POLL_S)
        if found.fault:
            raise GatewayError(found.fault)
    click.echo(f"gateway {section.name}: {services_path} is in force")


@click.command(epilog=examples("sexplsched gateway scale -s services.yaml chat 2"))
@services_option
@click.argument("service")
@click.argument("replicas", type=click.IntRange(0))
def scale(services_path: Path, service: str, replicas: int) -> None:
    """Keep at least REPLICAS replicas of SERVICE, instead of the file's scale.min, until the gateway's `down`.

    Also restarts a service that gave up after failed starts.
    """
    section, paths = opened_in_force(services_path)
    section = accepted.section_in_force(paths, services_path) or section
    known_service(section, service)
    most = section.services[service].scale.max
    if replicas > most:
        raise GatewayError(f"{service}: {replicas} is above services.{service}.scale.max, {most}, which is in force")
    if not paths.root.exists():
        raise GatewayError(f"gateway {section.name} has never been up: {paths.root} is missing")
    overrides = state.read(paths.overrides, dict[str, Override]) or {}
    if not state.save(paths.overrides, {**overrides, service: Override(replicas, time.time())}):
        raise GatewayError(f"{paths.overrides}: cannot be written")
    click.echo(f"{service}: at least {replicas} replicas")


_STALE_S = 10.0
_COUNTS = ("serving", "coming", "draining", "wanted", "arrivals", "in_flight", "queued")
_SERVICE = (Column("SERVICE"), *(Column(name.upper(), ">") for name in (*_COUNTS, "next_in")), Column("REASON"))
_REPLICA = (
    *(Column("REPLICA"), Column("PHASE"), Column("JOB", ">"), Column("ADDRESS"), Column("IN_FLIGHT", ">")),
    *(Column("ENDS", ">"), Column("REASON")),
)
_LOAD = tuple(Column(title, ">") for title in ("RUNNING", "WAITING", "KV_CACHE"))
"""Columns from the metrics of the replicas' servers, shown if any are read."""


@click.command(epilog=examples("sexplsched gateway status -s services.yaml"))
@services_option
@json_option
def status(*, services_path: Path, as_json: bool) -> None:
    """Show the services of a gateway and their replicas. Exits 1 if its control plane does not report."""
    section, paths = opened_in_force(services_path)
    shown = state.read(paths.status, Report)
    if shown is None:
        raise GatewayError(f"gateway {section.name} has not reported yet: {paths.status} is missing")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=1).decode())
    else:
        urls = paths.address.read_text(encoding="ascii").split() if paths.address.exists() else []
        _print(shown, ", ".join(urls) or "not up")
    age_s = time.time() - shown.time_s
    if age_s > _STALE_S:
        click.echo(f"the control plane has not reported for {age_s:.0f} s", err=True)
        raise click.exceptions.Exit(1)


def _print(shown: Report, url: str) -> None:
    click.echo(f"gateway {shown.gateway}: {url}{', closing' if shown.closing else ''}")
    click.echo("\n".join(lines(_SERVICE, map(_service, shown.services), room())))
    if any(replica.load for replica in shown.replicas):
        columns = (*_REPLICA[:5], *_LOAD, *_REPLICA[5:])
        rows = [(*(row := _replica(replica))[:5], *_load(replica.load), *row[5:]) for replica in shown.replicas]
        click.echo("\n" + "\n".join(lines(columns, rows, room())))
    elif shown.replicas:
        click.echo("\n" + "\n".join(lines(_REPLICA, map(_replica, shown.replicas), room())))


def _service(service: ServiceReport) -> tuple[object, ...]:
    counts = (getattr(service, name) for name in _COUNTS)
    next_in = None if service.next_in_s is None else f"{service.next_in_s:.0f} s"
    why = "given up after failed starts; `sexplsched gateway scale` tries again" if service.given_up else service.reason
    return service.name, *counts, next_in, why


def _replica(replica: ReplicaReport) -> tuple[object, ...]:
    where = f"{replica.host}:{replica.port}" if replica.port else None
    ends = datetime.fromtimestamp(replica.ends_s).astimezone().isoformat("T", "seconds") if replica.ends_s else None
    metrics = f"metrics: {replica.metrics_fault}" if replica.metrics_fault else ""
    why = ", ".join(filter(None, ("burst" if replica.burst else "", replica.reason, metrics)))
    return replica.name, replica.phase, replica.job_id, where, replica.in_flight, ends, why


def _load(load: ReplicaLoad | None) -> tuple[object, ...]:
    if load is None:
        return None, None, None
    return load.running, load.waiting, None if load.kv_cache is None else f"{load.kv_cache:.0%}"


@click.command(epilog=examples("sexplsched gateway services -s services.yaml", "sexplsched gateway services --keys"))
@services_option
@json_option
@keys_option("a services file", keys)
def services(*, services_path: Path, as_json: bool) -> None:
    """Check a services file, and list its services with the models and paths routed to them."""
    section, paths = opened(services_path)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(section, enc_hook=str), indent=1))
        return
    click.echo(f"gateway {section.name}, address file {paths.address}")
    columns = (
        Column("SERVICE"),
        Column("MIN", ">"),
        Column("MAX", ">"),
        Column("RULE"),
        Column("PATH"),
        Column("MODELS"),
    )
    offered = (
        (
            name,
            one.scale.min,
            one.scale.max,
            one.scale.rule,
            f"/services/{name}",
            ", ".join((name, *one.models, *one.also_serves)),
        )
        for name, one in section.services.items()
    )
    click.echo("\n".join(lines(columns, offered, room())))


@click.command(
    epilog=examples(
        'curl "$(sexplsched gateway address -s services.yaml)/v1/models"',
        "sexplsched gateway address -s services.yaml --keepalived 10.0.0.9/24",
    )
)
@services_option
@click.option(
    "--keepalived",
    "shared",
    metavar="ADDRESS/PREFIX",
    help="Print keepalived configurations for a virtual IP of two gateways.",
)
@click.option("--interface", default="eth0", show_default=True, help="Network interface of the virtual IP.")
@click.option(
    "--router-id",
    default=51,
    show_default=True,
    type=click.IntRange(1, 255),
    help="VRRP router id, unique in the network.",
)
def address(services_path: Path, shared: str | None, interface: str, router_id: int) -> None:
    """Print the URL of a running gateway, or both URLs of two gateways, one per line.

    `gateway services` shows which file holds them.
    """
    section, paths = opened_in_force(services_path)
    if shared is not None:
        for text in keepalived.configurations(section, shared, interface, router_id):
            click.echo(text, nl=False)
        return
    try:
        click.echo(paths.address.read_text(encoding="ascii"), nl=False)
    except OSError as error:
        raise GatewayError(f"gateway {section.name} is not up: {paths.address}: {error.strerror}") from error


@click.command(
    epilog=examples("sexplsched gateway logs -s services.yaml", "sexplsched gateway logs -s services.yaml chat -n 100")
)
@services_option
@click.argument("service", required=False)
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1), help="Lines from the end.")
def logs(services_path: Path, service: str | None, lines: int) -> None:
    """Print the gateway's event log (JSON lines), or with SERVICE what its newest replica printed."""
    section, paths = opened_in_force(services_path)
    path = paths.events
    if service is not None:
        known_service(section, service)
        found = (paths.root / "replicas").glob(f"{service}-????????/log")
        newest = max(found, key=lambda log: log.stat().st_mtime, default=None)
        if newest is None:
            raise GatewayError(f"{service}: no replica has printed anything yet")
        path = newest
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            last = deque(file, maxlen=lines)
    except OSError as error:
        raise GatewayError(f"{path}: {error.strerror}") from error
    for line in last:
        click.echo(line, nl=False)
