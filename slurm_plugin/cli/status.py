"""What goes on, `sexplsched status`, `explain` and `plan`, and the same in a browser and on a screen, `web` and `top`.

They show the state that the daemon publishes; without one `status`, `explain` and `plan` look themselves.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from explsched import log
from explsched.cli import config_option, json_option, known_users, own_name
from explsched.errors import ExplschedError, UnknownNameError, with_extra
from explsched.tables import Column, is_terminal, lines, printable, room
from sched_policy.model import JobState
from slurm_plugin import config as configuration
from slurm_plugin.cli.cluster_state import current, fresh_option, job_number, remembered, tell_source
from slurm_plugin.config import Config
from slurm_plugin.state.published import COLUMNS, Change, JobRow, PlanLine, State, part

if TYPE_CHECKING:
    from slurm_plugin.client.changes import Change as SlurmChange
    from slurm_plugin.state.view import View

_EXAMPLES = """\b
examples:
  sexplsched status --me
  sexplsched status --sweep digits --iterate 30
"""
_DEFAULT_FORMAT = "jobid,partition,name,user,state,gpus,step,metric,utility,planned,reason"
_SWEEP_FORMAT = "jobid,state,gpus,step,metric,params,utility,planned,reason"
_COUNTS = frozenset({"gpus", "tasks", "restarts", "preempted", "malformed", "params_changed"})
_NUMBERS = _COUNTS | {"utility", "score", "gpu_hours", "lost_gpu_s"}
_EXPLAIN_EXAMPLES = """\b
example:
  sexplsched explain 4711
"""
_PLAN_EXAMPLES = """\b
examples:
  sexplsched plan
  sexplsched plan --fresh --json
"""
_WIDTH = re.compile(r"[1-9][0-9]{0,3}")
_EMPTY = (None, "", "-")
_NAMED = 5


class NoJobError(ExplschedError):
    """There is nothing to explain: the job is over, or was never there."""


def _changes(view: View, config: Config) -> Sequence[SlurmChange]:
    """What the daemon would write."""
    from slurm_plugin.steering.reconcile import SteeringLimits, changes

    return changes(view.plan, view.seen, SteeringLimits.of(config))


_ALONE = "="
"""Before the id of a part that was asked for by its own name, whose record may have the id of its array or job."""


def _job_ids(_ctx: click.Context, _param: click.Parameter, text: str | None) -> frozenset[str] | None:
    """As `_values` has them: an id stands for a whole array or heterogeneous job, as in squeue, `4711_3` for a part."""
    words = text.split(",") if text else ()
    return frozenset(_ALONE * (not word.strip().isdecimal()) + str(job_number(word)) for word in words) or None


@click.command(epilog=_EXAMPLES)
@click.option("-j", "--jobs", callback=_job_ids, help="Only these job ids, separated by commas; of an array all tasks.")
@click.option("-u", "--user", "users", help="Only jobs of these users, separated by commas.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option("-p", "--partition", "partitions", help="Only these partitions, separated by commas.")
@click.option("-t", "--states", help="Only these states, separated by commas: PENDING, RUNNING, COMPLETING.")
@click.option("-n", "--sweep", help="Only jobs of this sweep.")
@click.option("-h", "--noheader", is_flag=True, help="No header line.")
@click.option(
    "-o",
    "--format",
    "columns",
    show_default=f"{_DEFAULT_FORMAT}; with --sweep {_SWEEP_FORMAT}".replace(",", ", "),
    help="Columns as NAME[:WIDTH], ... Without a width, as wide as needed.",
)
@click.option("-i", "--iterate", type=click.FloatRange(min=1), help="Refresh interval, s.")
@fresh_option
@json_option
@config_option
def status(
    jobs: frozenset[str] | None,
    users: str | None,
    me: bool,  # noqa: FBT001  click passes options by name
    partitions: str | None,
    states: str | None,
    sweep: str | None,
    noheader: bool,  # noqa: FBT001
    columns: str | None,
    iterate: float | None,
    fresh: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    config_path: Path | None,
) -> None:
    """Show the queue with each job's progress and utility.

    Jobs are listed best score first, with progress, utility and planned start. UTILITY is the expected improvement per
    GPU-hour, in percent of the sweep's known improvement.
    """
    wanted = _wanted(jobs, own_name() if me else users, partitions, states, sweep)
    layout = _layout(columns or (_SWEEP_FORMAT if sweep else _DEFAULT_FORMAT))
    state = current(config_path, fresh=fresh)
    if state.source == "daemon" and _unknown(wanted, state):  # submitted since then, it may be
        state = current(config_path, fresh=True)
    if fault := _unknown(wanted, state):
        if sweep is None or sweep not in _past_sweeps(config_path):
            raise fault
        click.echo(f"sexplsched: no job of it waits or runs: sexplsched sweep show {shlex.quote(sweep)}", err=True)
    while True:
        shown = [row for row in state.jobs if _is_wanted(row, wanted)]
        if as_json:
            click.echo(json.dumps({"written_s": state.written_s, "jobs": to_builtins(shown)}, indent=1))
        else:
            width = room()
            fitting = layout if columns or width is None else _told(layout, shown)
            cells = ([_cell(row, column.title.lower()) for column in fitting] for row in shown)
            click.echo("\n".join(lines(fitting, cells, width, heading=not noheader)))
        tell_source(state, config_path)
        if iterate is None:
            return
        state = _next(iterate, partial(current, config_path, fresh=fresh))


def _next(wait_s: float, look: Callable[[], State]) -> State:
    """What the next look that succeeds sees; those that fail are told, as squeue does: slurmctld may be restarted."""
    while True:
        time.sleep(wait_s)
        try:
            return look()
        except ExplschedError as error:
            click.echo(f"sexplsched: {error}", err=True)


_Wanted = Mapping[str, frozenset[str]]
"""The values of columns that rows are to have; a column that is not here may have any."""


def _wanted(
    jobs: frozenset[str] | None, users: str | None, partitions: str | None, states: str | None, sweep: str | None
) -> _Wanted:
    wanted = {
        "jobid": jobs,
        "user": _words(users),
        "partition": _words(partitions),
        "state": _words(states.upper() if states else None),
        "sweep": frozenset({sweep}) if sweep else None,
    }
    known = {state.value for state in JobState}
    unknown = (wanted["state"] or frozenset()) - known
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: accepted are {', '.join(sorted(known))}", param_hint="--states"
        )
    return {key: values for key, values in wanted.items() if values is not None}


def _is_wanted(row: JobRow, wanted: _Wanted) -> bool:
    return all(not values.isdisjoint(_values(row, key)) for key, values in wanted.items())


def _values(row: JobRow, key: str) -> Iterable[str]:
    """What a row is found by. A job that may start in several partitions, as in `short,long`, is in each of them."""
    if key == "jobid":
        return str(row.jobid), str(row.belongs_to), f"{_ALONE}{row.jobid}"
    return row.partition.split(",") if key == "partition" else (str(getattr(row, key)),)


def _unknown(wanted: _Wanted, state: State) -> ExplschedError | None:
    """What to say of the first name that nothing has; None if all are known."""
    rows = state.jobs
    for job_id in sorted(wanted.get("jobid", ())):
        number = int(job_id.removeprefix(_ALONE))
        if state.explanation(number) is None and not any(job_id in _values(row, "jobid") for row in rows):
            return NoJobError(f"job {number} neither waits nor runs")
    try:
        known_users(sorted(wanted.get("user", ())), (row.user for row in rows))
    except UnknownNameError as error:
        return error
    partitions = {name for row in rows for name in row.partition.split(",")}
    partitions |= {name for node in state.nodes for name in node.partitions}
    if not state.nodes:  # Slurm hides them
        partitions |= wanted.get("partition", frozenset())
    for kind, known in (("partition", partitions), ("sweep", {row.sweep for row in rows if row.sweep})):
        for name in sorted(wanted.get(kind, frozenset()) - known):
            return UnknownNameError(kind, name, known)
    return None


def _past_sweeps(config_path: Path | None) -> frozenset[str]:
    """Sweeps that the daemon has noted, and those of one's own jobs that Slurm still remembers."""
    from explsched.job_options.comment import PREFIX  # where nothing is unknown none of it is needed
    from slurm_plugin import job_options
    from slurm_plugin.observation.sweep_record import read as notes

    config = configuration.load(config_path)
    found = {note.sweep for note in notes(config.progress.spool)}
    for record in remembered(config, PREFIX):
        try:
            options = job_options.parse(record.comment)
        except job_options.JobOptionError:
            continue
        if options is not None and options.exploration is not None and options.exploration.sweep:
            found.add(options.exploration.sweep)
    return frozenset(found)


def _words(text: str | None) -> frozenset[str] | None:
    return frozenset(word.strip() for word in text.split(",")) if text else None


def _layout(columns: str) -> list[Column]:
    layout = []
    for column in columns.split(","):
        name, colon, width = column.strip().lower().partition(":")
        if name not in COLUMNS or (colon and _WIDTH.fullmatch(width) is None):
            raise click.BadParameter(
                f"{column!r}: accepted are {', '.join(COLUMNS)}; widths are 1 to 9999", param_hint="--format"
            )
        layout.append(Column(name.upper(), ">" if name in _NUMBERS else "<", int(width) if colon else None))
    return layout


def _told(layout: list[Column], rows: Sequence[JobRow]) -> list[Column]:
    """The columns in which some row has something: on a screen there is no room for the others."""
    return [
        column for column in layout if not rows or any(_cell(row, column.title.lower()) not in _EMPTY for row in rows)
    ]


def _cell(row: JobRow, name: str) -> object:
    if name == "metric" and row.value is not None:
        return f"{row.metric}={row.value:.4g}"
    return getattr(row, name)


@click.command(epilog=_EXPLAIN_EXAMPLES)
@click.argument("job_id", type=job_number, metavar="JOBID")
@fresh_option
@json_option
@config_option
def explain(job_id: int, fresh: bool, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  by name
    """Explain why a job waits or runs, and its utility."""
    state = current(config_path, fresh=fresh)
    found = state.explanation(job_id)
    if found is None and (tasks := sorted(row.jobid for row in state.jobs if row.belongs_to == job_id)):
        named = ", ".join(map(str, tasks[:_NAMED])) + ", ..." * (len(tasks) > _NAMED)
        raise NoJobError(f"all tasks of array {job_id} have ids of their own by now: explain one of them ({named})")
    if found is None and state.source == "daemon":  # submitted since then
        state = current(config_path, fresh=True)
        found = state.explanation(job_id)
    if found is None:
        raise NoJobError(f"job {job_id} neither waits nor runs{_was(job_id, config_path)}")
    if as_json:
        row = next((to_builtins(row) for row in state.jobs if row.jobid == job_id), {"jobid": job_id})
        told = {**row, "explanation": found.sentences, "written_s": state.written_s}
        click.echo(json.dumps(told, indent=1))
        return
    click.echo("\n".join(map(printable, found.sentences)))
    tell_source(state, config_path)


def _was(job_id: int, config_path: Path | None) -> str:
    """Where to look for what became of a job that is gone."""
    from slurm_plugin.observation.sweep_record import read as notes  # where nothing failed it is not needed

    sweeps = {note.sweep for note in notes(configuration.load(config_path).progress.spool) if note.job == job_id}
    return "".join(f"; what became of it: sexplsched sweep show {shlex.quote(sweep)}" for sweep in sorted(sweeps))


@click.command(epilog=_PLAN_EXAMPLES)
@fresh_option
@json_option
@config_option
def plan(fresh: bool, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Show the plan and the changes it needs in Slurm.

    Shows the last pass of the daemon; without one, or with --fresh, what a pass would do now. Changes nothing.
    """
    state = current(config_path, fresh=fresh, wanted=_changes)
    lines, changes = part(state.plan, tuple[PlanLine, ...]), part(state.changes, tuple[Change, ...])
    if as_json:
        told = {"plan": to_builtins(lines), "changes": to_builtins(changes), "written_s": state.written_s}
        click.echo(json.dumps(told, indent=1))
        return
    for line in lines:
        click.echo(f"{line.kind:<8} {','.join(map(str, line.jobs))}  {printable(line.text)}")
    for change in changes:
        click.echo(f"change   {printable(change.text)}")
    if not changes and not any(line.kind in ("preempt", "resize", "stop") for line in lines):
        click.echo("Slurm matches the plan.")
    tell_source(state, config_path)


_WEB_EXAMPLES = """\b
examples:
  sexplsched web
  sexplsched web --gateway ~/.explsched/gateway/main
  sexplsched web --socket /run/explsched-web/web.sock --user-header X-Remote-User

The first prints a URL with a token. Anyone who has it sees what you can see. From your own machine:

\b
  ssh -L 8642:127.0.0.1:8642 login-node
"""
_TOP_EXAMPLES = """\b
examples:
  sexplsched top
  sexplsched top --me --iterate 2

Needs Textual, the extra `top`. Keys are as in htop; F1 lists them.
"""
_SOCKET_MODE = 0o660


class WebError(ExplschedError):
    """The page cannot be served this way."""


class TopError(ExplschedError):
    """The screen cannot be shown."""


@click.command(epilog=_WEB_EXAMPLES)
@click.option("-p", "--port", default=8642, show_default=True, type=click.IntRange(1, 65535), help="Port on 127.0.0.1.")
@click.option(
    "--socket", "path", type=click.Path(path_type=Path), help="Listen on this Unix socket instead, for a proxy."
)
@click.option("--user-header", help="Header in which the proxy names the user; needs --socket.")
@click.option(
    "--gateway",
    "gateways",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Also show the inference gateway with this state directory; repeatable.",
)
@config_option
def web(
    port: int, path: Path | None, user_header: str | None, gateways: tuple[Path, ...], config_path: Path | None
) -> None:
    """Show cluster, queue and sweeps in a browser.

    The page is read-only. It shows the state that the daemon publishes, without calling Slurm. Where PrivateData hides
    other users' jobs, users whom a proxy has authenticated see only their own.
    """
    import secrets

    from aiohttp import web as aiohttp_web

    from slurm_plugin.web.server import Access, Page

    config = configuration.load(config_path)
    if user_header and path is None:
        raise WebError("--user-header needs --socket: on a port any user of this host could write that header")
    log.set_up("warning", None)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
    token = "" if user_header else secrets.token_urlsafe(32)
    access = Access(token, user_header or "", frozenset() if path else hosts)
    query = "" if user_header else f"/login?token={token}"
    told = f"serving on {path}, log in at {query or '/'}" if path else f"open http://127.0.0.1:{port}{query}"
    app, where = (
        Page(config, access, gateways).app(),
        ({"path": str(path)} if path else {"host": "127.0.0.1", "port": port}),
    )
    previous = os.umask(0o777 & ~_SOCKET_MODE)
    try:
        aiohttp_web.run_app(app, print=lambda _banner: click.echo(told), access_log=None, **where)
    except OSError as error:
        raise WebError(f"cannot listen on {path or f'port {port}'}: {error.strerror}") from error
    finally:
        os.umask(previous)


@click.command(epilog=_TOP_EXAMPLES)
@click.option("-u", "--user", help="Only jobs of this user.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option(
    "-i", "--iterate", default=5.0, show_default=True, type=click.FloatRange(min=1), help="Refresh interval, s."
)
@config_option
def top(user: str | None, me: bool, iterate: float, config_path: Path | None) -> None:  # noqa: FBT001  by name
    """Watch queue, sweeps and GPUs in a terminal."""
    from importlib.util import find_spec  # `status` does not need it

    if find_spec("textual") is None:
        raise TopError(f"sexplsched top needs Textual: {with_extra('top')}")
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise TopError("sexplsched top needs a terminal; elsewhere: sexplsched status --iterate 5")
    from slurm_plugin.cli.screen import Screen

    Screen(lambda: current(config_path, fresh=False), iterate, own_name() if me else user or "").run()
