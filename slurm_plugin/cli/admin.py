"""Commands of who runs the site: `sexplsched config` and `policies`, `audit` and `admin reset`.

They check and show the configuration and the policies it may name, show what explsched changed in Slurm, and take all
of it back.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from textwrap import fill

import click
import yaml
from msgspec import to_builtins

from explsched import strict_yaml
from explsched.cli import Commands, config_option, examples, json_option, moment, print_keys
from explsched.errors import ExplschedError, PolicyError
from explsched.tables import Column, lines, printable, room
from sched_policy import catalog
from sched_policy.policy import SchedulingPolicy, needs_of
from slurm_plugin import config as configuration
from slurm_plugin import sighting
from slurm_plugin.audit_file import AuditEntry
from slurm_plugin.cli.cluster_state import job_number
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.notation import clock
from slurm_plugin.config import Config
from slurm_plugin.instance.host_lock import HostLock

_CONFIG_EXAMPLES = """\b
examples:
  sexplsched config check
  sexplsched config example >explsched.yaml
"""
_POLICIES_EXAMPLES = """\b
example:
  sexplsched policies
"""


@click.group(cls=Commands, epilog=_CONFIG_EXAMPLES)
def config() -> None:
    """Check and show the configuration."""


@config.command(epilog=examples("sexplsched config check -f explsched.yaml"))
@config_option
def check(config_path: Path | None) -> None:
    """Check the configuration file. Each error names its key and the accepted values."""
    configuration.load(config_path)
    path = configuration.find(config_path)
    click.echo(f"{path}: ok" if path else "no configuration file: the defaults are used")


@config.command(epilog=examples("sexplsched config show"))
@json_option
@config_option
def show(as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Show what the configuration file says, with defaults for the rest.

    A running daemon has read the file at its start or its last reload.
    """
    found = configuration.plain(configuration.load(config_path))
    click.echo(json.dumps(found, indent=1) if as_json else yaml.safe_dump(found, sort_keys=False).rstrip("\n"))


@config.command(epilog=examples("sexplsched config keys | grep preemption"))
@json_option
def keys(as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """List every key with its meaning and default."""
    found = tuple(strict_yaml.keys(configuration.Config))
    if as_json:
        click.echo(json.dumps(to_builtins(found), indent=1))
        return
    print_keys(found)


@config.command(epilog=examples("sexplsched config example > explsched.yaml"))
def example() -> None:
    """Print a configuration file with all keys, commented out. Each has its meaning and its default."""
    click.echo(configuration.example(), nl=False)


@click.command(epilog=_POLICIES_EXAMPLES)
@json_option
def policies(as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """List the scheduling policies and the data they need."""
    known: dict[str, SchedulingPolicy] = {}
    for name in catalog.POLICIES.names():
        try:
            known[name] = catalog.build(name)
        except PolicyError as error:  # a package of somebody else's
            click.echo(f"sexplsched: {error}", err=True)
    if as_json:
        click.echo(json.dumps({name: _as_json(policy) for name, policy in known.items()}, indent=1))
        return
    indent = max(map(len, known), default=0) + 1
    for name, policy in known.items():
        click.echo(_wrapped(f"{name:<{indent}}{policy.summary}", indent))
        for need in needs_of(policy):
            click.echo(_wrapped(f"{'':{indent}}needs {need.data}; without: {need.without}", indent))


def _wrapped(line: str, indent: int) -> str:
    """The line, wrapped to the width of the terminal below its second column."""
    return fill(line, shutil.get_terminal_size().columns, subsequent_indent=" " * (indent + 2))


def _as_json(policy: SchedulingPolicy) -> dict[str, object]:
    needs = [{"data": need.data, "without": need.without} for need in needs_of(policy)]
    return {"summary": policy.summary, "needs": needs}


_AUDIT_EXAMPLES = """\b
examples:
  sexplsched audit 4711
  sexplsched audit --since 2h --json
  sexplsched audit | cut -f 2,3,5

A terminal gets a table; a file or a pipe gets one tab-separated line per change.
"""
_RESET_EXAMPLES = """\b
examples:
  sexplsched admin reset --dry-run
  systemctl stop sexplschedd && sexplsched admin reset
"""
_NAMED = 3
_COLUMNS = tuple(map(Column, ("TIME", "JOBID", "FIELD", "BEFORE", "AFTER", "RULE", "REASON")))


class ResetError(ExplschedError):
    """Nothing was taken back, because a daemon would write it again, or because it is not known what is ours."""


@click.command(epilog=_AUDIT_EXAMPLES)
@click.argument("job_id", type=job_number, metavar="[JOBID]", required=False)
@click.option(
    "--since",
    "since_s",
    type=moment,
    metavar="TIME",
    default="0",
    help="Start time: 90m, 2h, 7d ago, or 2026-01-31T12:00.",
)
@json_option
@config_option
def audit(job_id: int | None, since_s: float, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001
    """Show what explsched changed in Slurm, and why.

    Reads the audit file, which is readable by the daemon's user and group.
    """
    from slurm_plugin.audit_file import read

    config = configuration.load(config_path)
    jobs = None if job_id is None else frozenset({job_id})
    found = tuple(read(config.audit.file, since_s, jobs))
    if as_json:
        click.echo(json.dumps({"changes": [to_builtins(entry) for entry in found]}, indent=1))
        return
    if not found and not config.audit.file.exists():
        click.echo(f"sexplsched: no changes yet: there is no {config.audit.file}", err=True)
    elif not found:
        of_job = "" if job_id is None else f" of job {job_id}"
        click.echo(f"sexplsched: nothing{of_job} was changed in this period", err=True)
    rows, width = [_row(entry) for entry in found], room()
    click.echo("\n".join(_separated(rows) if width is None else lines(_COLUMNS, rows, width)))


def _row(entry: AuditEntry) -> tuple[object, ...]:
    why = f"REFUSED ({entry.refused}): {entry.reason}" if entry.refused else entry.reason
    return clock(entry.time_s), entry.job, entry.field, entry.before, entry.after, entry.rule, why


def _separated(rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """For other programs: AdminComments are long, and columns as wide as the longest would be very wide."""
    yield "\t".join(column.title for column in _COLUMNS)
    for row in rows:
        yield "\t".join(printable("-" if cell is None else str(cell)) for cell in row)


@click.group(cls=Commands, epilog=_RESET_EXAMPLES)
def admin() -> None:
    """Undo what explsched does."""


@admin.command(epilog=_RESET_EXAMPLES)
@click.option("-n", "--dry-run", is_flag=True, help="Dry run: show changes only.")
@click.option(
    "--all-site-factors", is_flag=True, help="Set all site factors to 0, also those that others may have set."
)
@config_option
def reset(dry_run: bool, all_site_factors: bool, config_path: Path | None) -> None:  # noqa: FBT001
    """Undo every change that explsched has made in Slurm.

    Restores site factors, deletes leases, unpins jobs and removes explsched's entries from AdminComments. Stop the
    daemon first. Running jobs continue. Exit status 1 if Slurm refused a change.
    """
    config, now_s = configuration.load(config_path), time.time()
    client = CliClient(config.slurm.timeout_s)
    with nullcontext() if dry_run else _no_daemon(config.progress.spool, client, now_s):
        sys.exit(_take_back(config, client, now_s, dry_run=dry_run, all_site_factors=all_site_factors))


@contextmanager
def _no_daemon(spool: Path, client: CliClient, now_s: float) -> Iterator[None]:
    """Keep daemons of this host from steering meanwhile. Raises `ResetError` or `AnotherDaemonError` if one does.

    The heartbeat tells of daemons on all hosts; the lock also of one that cannot write it, or writes it elsewhere.
    """
    seen = sighting.last_heartbeat(spool)
    if seen is not None and seen.is_alive(now_s):
        where = f"pid {seen.holder.pid} on {seen.holder.host}"
        raise ResetError(f"a daemon runs ({where}) and would steer again: stop it first, or use --dry-run")
    if fault := sighting.directory_fault(spool) or sighting.file_system_fault(spool):
        click.echo(
            f"sexplsched: {spool}: {fault}: a daemon on another host would not be seen; make sure that none runs",
            err=True,
        )
    lock, cluster = HostLock(), client.capabilities().cluster
    try:
        lock.take(cluster)
        if not lock.is_held:
            raise ResetError(f"a process that may be a daemon has the lock of cluster {cluster}: stop it first")
        yield
    finally:
        lock.release()


def _take_back(config: Config, client: CliClient, now_s: float, *, dry_run: bool, all_site_factors: bool) -> int:
    """Take everything back, or show it; returns the exit status."""
    from slurm_plugin.audit import Before, Reasons, apply
    from slurm_plugin.audit_file import AuditTrail
    from slurm_plugin.client.batch import shown
    from slurm_plugin.observation.rests import Rests
    from slurm_plugin.observation.site_factors import OwnFactors
    from slurm_plugin.steering.reconcile import taken_back

    record = config.order.site_factor_file
    found = client.look()
    own = OwnFactors.of_nobody_else(record) if all_site_factors else OwnFactors.of_daemon(record)
    others = own.others(found.jobs)
    if kept := [f"job {job_id}: {factor}" for job_id, factor in sorted(others.items())]:
        named = ", ".join(kept[:_NAMED]) + (f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else "")
        click.echo(
            f"sexplsched: site factors that {record} does not list as explsched's are kept ({named}); "
            "--all-site-factors sets all of them to 0",
            err=True,
        )
    rests = Rests(record)
    begins_s = rests.own_begins_s(found.jobs, now_s) if rests.is_recorded else None
    changes = taken_back(found, others, own.unseen(found.jobs), begins_s, now_s)
    for change in changes:
        click.echo(f"{'would change' if dry_run else 'change'}  {shown(change)}")
    if dry_run or not changes:
        click.echo(
            f"{len(changes)} changes to make"
            if changes
            else "nothing that is known to be explsched's is left in Slurm"
            if kept
            else "nothing of explsched is left in Slurm"
        )
        return 0
    jobs = {job.job_id: job for job in found.jobs}
    trail = AuditTrail(config.audit.file, config.audit.max_mib, config.audit.kept)
    reasons = Reasons.all_for("sexplsched admin reset")
    failures = apply(client, trail, changes, Before.of(jobs, found.reservations), reasons, now_s)
    refused = {failure.change for failure in failures}
    own.note((change for change in changes if change not in refused), jobs)
    for failure in failures:
        click.echo(f"sexplsched: refused by Slurm: {shown(failure.change)}: {failure.message}", err=True)
    click.echo(f"{len(changes) - len(failures)} changes made")
    return 1 if failures else 0
