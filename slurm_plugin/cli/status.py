"""`sexplsched status`: the queue with what the jobs have learned and are worth."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from msgspec import to_builtins

from explsched.cli.options import config_option, json_option
from sched_policy.model import JobState
from slurm_plugin import heartbeat
from slurm_plugin.cli.job_row import COLUMNS, Row, rows
from slurm_plugin.cli.session import look

_EXAMPLES = """\b
examples:
  sexplsched status --me
  sexplsched status --sweep digits --iterate 30
"""
_DEFAULT_FORMAT = (
    "jobid:10,partition:9,name:16,user:8,state:10,gpus:4,step:11,metric:14,utility:10,planned:19,reason:36"
)


@click.command(epilog=_EXAMPLES)
@click.option("-j", "--jobs", help="Only these job ids, separated by commas.")
@click.option("-u", "--user", "users", help="Only jobs of these users, separated by commas.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option("-p", "--partition", "partitions", help="Only these partitions, separated by commas.")
@click.option("-t", "--states", help="Only these states, separated by commas: PENDING, RUNNING, COMPLETING.")
@click.option("-n", "--sweep", help="Only jobs of this sweep.")
@click.option("-h", "--noheader", is_flag=True, help="No header line.")
@click.option(
    "-o", "--format", "columns", default=_DEFAULT_FORMAT, show_default=True, help="Columns as NAME[:WIDTH], ..."
)
@click.option("-i", "--iterate", type=click.FloatRange(min=1), help="Repeat every so many seconds.")
@json_option
@config_option
def status(
    jobs: str | None,
    users: str | None,
    me: bool,  # noqa: FBT001  click passes options by name
    partitions: str | None,
    states: str | None,
    sweep: str | None,
    noheader: bool,  # noqa: FBT001
    columns: str,
    iterate: float | None,
    as_json: bool,  # noqa: FBT001
    config_path: Path | None,
) -> None:
    """Show jobs, best score first, with progress, utility and planned start.

    UTILITY is the expected improvement in percent of what the job's sweep is known to improve, per GPU-hour.
    """
    keep = _filter(jobs, getpass.getuser() if me else users, partitions, states, sweep)
    layout = _layout(columns)
    while True:
        view = look(config_path)
        shown = [row for row in rows(view) if keep(row)]
        if as_json:
            click.echo(json.dumps({"jobs": [to_builtins(row) for row in shown]}, indent=1))
        else:
            click.echo("\n".join(_lines(shown, layout, [] if noheader else [_header(layout)])))
        if notice := heartbeat.notice(view.config.progress.spool, time.time()):
            click.echo(f"sexplsched: {notice}", err=True)
        if iterate is None:
            return
        time.sleep(iterate)


def _filter(
    jobs: str | None, users: str | None, partitions: str | None, states: str | None, sweep: str | None
) -> Callable[[Row], bool]:
    wanted = {
        "jobid": _words(jobs),
        "user": _words(users),
        "partition": _words(partitions),
        "state": _words(states.upper() if states else None),
        "sweep": frozenset({sweep}) if sweep else None,
    }
    if strange := sorted(word for word in wanted["jobid"] or () if not word.isdecimal()):
        raise click.BadParameter(
            f"{', '.join(map(repr, strange))}: accepted are job ids such as 4711", param_hint="--jobs"
        )
    known = {state.value for state in JobState}
    unknown = (wanted["state"] or frozenset()) - known
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: accepted are {', '.join(sorted(known))}", param_hint="--states"
        )
    return lambda row: all(values is None or str(getattr(row, key)) in values for key, values in wanted.items())


def _words(text: str | None) -> frozenset[str] | None:
    return frozenset(word.strip() for word in text.split(",")) if text else None


def _layout(columns: str) -> list[tuple[str, int]]:
    layout = []
    for column in columns.split(","):
        name, _, width = column.strip().lower().partition(":")
        if name not in COLUMNS or not (width or "12").isdigit():
            raise click.BadParameter(f"{column!r}: accepted are {', '.join(COLUMNS)}", param_hint="--format")
        layout.append((name, int(width or 12)))
    return layout


def _header(layout: list[tuple[str, int]]) -> str:
    return " ".join(f"{name.upper():<{width}.{width}}" for name, width in layout).rstrip()


def _lines(shown: Iterable[Row], layout: list[tuple[str, int]], head: list[str]) -> list[str]:
    return head + [" ".join(_cell(row, name, width) for name, width in layout).rstrip() for row in shown]


def _cell(row: Row, name: str, width: int) -> str:
    value = getattr(row, name)
    if name == "metric" and row.value is not None:
        value = f"{row.metric}={row.value:.4g}"
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    # A name is the user's free text: control characters must not reach a terminal.
    printable = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return f"{printable:<{width}.{width}}"
