"""`sexplsched sweep`: what became of a sweep's trainings, and sweeps that search by themselves."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from explsched.cli import (
    Commands,
    alternative,
    config_option,
    examples,
    is_stdout,
    json_option,
    keys_option,
    known_users,
    own_name,
)
from explsched.errors import ExplschedError, SlurmUnreachableError, UnknownNameError, warn, with_extra
from explsched.job_options.comment import PREFIX
from explsched.parameters import listed, of_value
from explsched.tables import Column, lines, room
from slurm_plugin.cli.cluster_state import look, published, remembered

if TYPE_CHECKING:
    from explsched.strict_yaml import Key
    from slurm_plugin.state.view import View
    from slurm_plugin.sweeps.results import SweepResults
    from slurm_plugin.sweeps.search import SearchStanding

_EXAMPLES = """\b
examples:
  sexplsched sweep list
  sexplsched sweep show digits --plot digits.png
  sexplsched sweep run sweep.yaml
  sexplsched sweep export digits digits.csv
"""
POLL_S = 5.0
_MOST_NAMED = 10
_STATES = ("done", "running", "waiting", "paused", "stopped", "ended", "over")


class SeveralSweepsError(ExplschedError):
    """What is asked for can be done for one sweep only, and several have the name."""


class _Sweeps(Commands):
    """`sexplsched sweep NAME` is `sexplsched sweep show NAME`, unless NAME is a command.

    A second word tells of a misspelt command, as in `sweep shwo digits`.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_alone = all(word.startswith("-") for word in args[1:2])
        is_name = not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and is_alone
        return super().resolve_command(ctx, ["show", *args] if is_name else args)


@click.group(cls=_Sweeps, epilog=_EXAMPLES)
def sweep() -> None:
    """Show sweeps, past ones included, and run searches. `sweep NAME` is short for `sweep show NAME`."""


_user = click.option("-u", "--user", help="Only sweeps of this user.")
_me = click.option("--me", is_flag=True, help="Only my sweeps.")
_metric = click.option("--metric", help="Only that of this metric, where a name has several.")


@sweep.command("list", epilog=examples("sexplsched sweep list --me"))
@_user
@_me
@json_option
@config_option
def list_(user: str | None, me: bool, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """List sweeps: states of trainings, best value, GPU-hours."""
    found = _found(look(config_path), None, own_name() if me else user)
    if as_json:
        click.echo(json.dumps({"sweeps": [_summary(one) for one in found]}, indent=1))
        return
    columns = [
        *(Column(title) for title in ("SWEEP", "USER", "METRIC")),
        *(Column(title, ">") for title in ("BEST", "GPU_H", "SAVED_GPU_H")),
        Column("TRAININGS"),
    ]
    cells = (
        (
            one.sweep,
            one.user,
            one.metric,
            one.best and one.best.best,
            *map(_hours, (one.gpu_h, one.saved_gpu_h)),
            _counts(one),
        )
        for one in found
    )
    click.echo("\n".join(lines(columns, cells, room())))


@sweep.command(
    epilog=examples(
        "sexplsched sweep show digits",
        "sexplsched sweep show digits --csv > digits.csv",
        "sexplsched sweep show digits --plot digits.png",
    )
)
@click.argument("name")
@_user
@_me
@_metric
@alternative("--csv", "form", "csv", "Print CSV, a column for each hyper-parameter.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the curves: .png, .svg or .pdf.")
@alternative("--json", "form", "json", "Print JSON.")
@config_option
def show(
    *,
    name: str,
    user: str | None,
    me: bool,
    metric: str | None,
    form: str | None,
    plot: Path | None,
    config_path: Path | None,
) -> None:
    """Show the trainings of a sweep, best first.

    Values, hyper-parameters, and which were paused or stopped and why.
    """
    from slurm_plugin.sweeps import files

    found = _found(look(config_path), name, own_name() if me else user, metric)
    if plot is not None:
        files.draw(_only(found, "--plot"), plot)
        click.echo(f"picture: {plot}", err=True)
    if form == "csv":
        click.echo(files.table(_only(found, "--csv")), nl=False)
    elif form == "json":
        click.echo(json.dumps({"sweeps": [{**_summary(one), **to_builtins(one)} for one in found]}, indent=1))
    else:
        click.echo("\n\n".join("\n".join(_page(one)) for one in found))
    if len(found) > 1:
        click.echo(f"sexplsched: {name} is {len(found)} sweeps: they differ in {_difference(found)}", err=True)


@sweep.command(
    epilog=examples(
        "sexplsched sweep export digits digits.csv",
        "sexplsched compare --trace digits.csv --cluster 1x4 --policies slurm,explsched",
    )
)
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
@_user
@_me
@_metric
@config_option
def export(*, name: str, path: Path, user: str | None, me: bool, metric: str | None, config_path: Path | None) -> None:
    """Export a sweep as a trace for simulate and compare.

    It has curves and hyper-parameters.
    Writes to PATH, or to the standard output if PATH is -.
    """
    from slurm_plugin.sweeps import files

    found = _only(_found(look(config_path), name, own_name() if me else user, metric), "export")
    text, lacks = files.trace(found)
    if is_stdout(path):
        click.echo(text, nl=False)
    else:
        files.write(path, text.encode())
    click.echo(f"{path}: {len(text.splitlines()) - 1} trainings", err=is_stdout(path))
    for lack in lacks:
        click.echo(f"sexplsched: {lack}", err=True)


def _search_keys() -> Iterator[Key]:
    from slurm_plugin.sweeps import search_file

    return search_file.keys()


@sweep.command(
    epilog=examples(
        "sexplsched sweep run sweep.yaml",
        "sexplsched sweep run sweep.yaml --wait --json",
        "sexplsched sweep run --keys",
    )
)
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@keys_option("a search's file", _search_keys)
@click.option("--wait", is_flag=True, help="Wait until the search ends; without this it runs on its own.")
@click.option("--search", hidden=True, help="Of a pass that Slurm makes: the search's name.")
@json_option
@config_option
def run(path: Path, wait: bool, search: str | None, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001
    """Run or resume a hyper-parameter search.

    FILE (YAML) describes it; `--keys` lists what it may say. Trials may be stopped early unless it forbids that.
    Trials are Slurm jobs. When one ends, a Slurm job submits the next, so no process has to stay running; the command
    may be repeated at any time. Trials and their state are in NAME.sweep beside the file.
    """
    from slurm_plugin import config as configuration
    from slurm_plugin.sweeps import search_file

    file = search_file.load(path) if search is None else search_file.of_pass(path, search)
    settings = configuration.load(config_path)
    if find_spec("optuna") is None:
        raise search_file.SearchError(
            f"{path}: sweep run needs Optuna on every node, {platform.node()} lacks it: {with_extra('optuna')}"
        )
    from slurm_plugin.sweeps.search import Search, SearchStoppedError

    found = Search(path, file, settings, config_path)
    try:
        standing = found.advance(time.time(), resumes=True)
    except SearchStoppedError as error:
        if not found.is_made_by_slurm:
            raise
        warn("sexplsched", str(error))  # and no failure, after which Slurm makes this pass again
        return
    fault, told = "", (-1, "")
    while wait and not standing.finished:
        if told != (standing.ended, fault):  # a search takes hours, and Ctrl-C does not end it
            told = standing.ended, fault
            click.echo(fault or f"{_standing(standing)}; it continues without this command", err=True)
        time.sleep(POLL_S)
        try:
            standing, fault = found.advance(time.time()), ""
        except SlurmUnreachableError as error:  # slurmctld may be restarted meanwhile
            fault = f"{error}; waiting until it answers"
    if as_json:
        click.echo(json.dumps(to_builtins(standing), indent=1))
        return
    click.echo(_standing(standing))
    if standing.best is not None:
        click.echo(f"best: {listed({name: of_value(value) for name, value in standing.best_params.items()})}")
    if not standing.finished:
        click.echo(f"it continues in Slurm; see `sexplsched sweep show {standing.name}`")


def _standing(standing: SearchStanding) -> str:
    best = "" if standing.best is None else f"; best {standing.best:.6g}, trial {standing.best_trial}"
    see = f": see {standing.directory}/trials/*/output" if standing.failed else ""
    held = standing.held
    first = ",".join(map(str, held[:_MOST_NAMED])) + ",..." * (len(held) > _MOST_NAMED)
    waits = f" ({len(held)} of them held: `scontrol release {first}`)" if held else ""
    return (
        f"{standing.name}: {standing.ended} trials ended ({standing.failed} without a report{see}), "
        f"{standing.under_way} under way{waits}, {standing.gpu_h:.2f} GPU-hours{best}"
    )


def _found(view: View, name: str | None, user: str | None, metric: str | None = None) -> tuple[SweepResults, ...]:
    """The sweeps of that name, user and metric, None: any. Raises `UnknownNameError`."""
    from slurm_plugin.observation.spool import WholeProgressSpool
    from slurm_plugin.observation.sweep_record import read
    from slurm_plugin.state.jobs import rows
    from slurm_plugin.sweeps.results import names, results

    spool = view.config.progress.spool
    notes, recent = read(spool), remembered(view.config, PREFIX)
    every = names(view.seen, notes, recent)
    if user is not None:
        known_users([user], (owner for owner, _ in every))
    of_user = {(owner, sweep) for owner, sweep in every if user in (None, owner)}
    wanted = {(owner, sweep) for owner, sweep in of_user if name in (None, sweep)}
    if name is not None and not wanted:
        raise UnknownNameError(f"sweep of {user}" if user else "sweep", name, (sweep for _, sweep in of_user))
    own, state = {row.jobid: row for row in rows(view)}, published(view.config)
    # The daemon remembers what it has granted, which a look does not tell. What has started since then waits no more.
    told = [row for row in (state.jobs if state else ()) if row.state == own.get(row.jobid, row).state]
    why = {row.jobid: row.reason for row in (*own.values(), *told)}
    found = results(view.seen, why, notes, WholeProgressSpool(spool), recent, wanted)
    if metric is not None and metric not in (metrics := {one.metric for one in found}):
        raise UnknownNameError("metric", metric, metrics)
    return tuple(one for one in found if metric in (None, one.metric))


def _only(found: tuple[SweepResults, ...], what: str) -> SweepResults:
    if len(found) > 1:
        raise SeveralSweepsError(
            f"{what}: {found[0].sweep} is {len(found)} sweeps: they differ in {_difference(found)}"
        )
    return found[0]


def _difference(found: tuple[SweepResults, ...]) -> str:
    users = sorted({one.user for one in found})
    metrics = sorted({f"{one.metric} ({one.direction})" for one in found})
    are_told_apart = len({one.metric for one in found}) == len(metrics)
    advice = "choose with --metric" if are_told_apart else "give each direction a sweep name of its own"
    parts = [("user", users, "choose with --user"), ("metric", metrics, advice)]
    return "; ".join(f"{what}: {', '.join(them)}: {advice}" for what, them, advice in parts if len(them) > 1)


def _summary(one: SweepResults) -> dict[str, object]:
    best = one.best
    return {
        "sweep": one.sweep,
        "user": one.user,
        "metric": one.metric,
        "direction": one.direction.value,
        **{state: sum(training.state == state for training in one.trainings) for state in _STATES},
        "best": best.best if best else None,
        "best_job": best.job if best else None,
        "gpu_h": one.gpu_h,
        "saved_gpu_h": one.saved_gpu_h,
    }


def _hours(gpu_h: float | None) -> float | None:
    return None if gpu_h is None else round(gpu_h, 3)


def _counts(one: SweepResults) -> str:
    """How many of its trainings are in which state, as words."""
    return ", ".join(f"{n} {state}" for state in _STATES if (n := sum(t.state == state for t in one.trainings)))


def _page(one: SweepResults) -> Iterator[str]:
    best, varied = one.best, one.varied()
    how_many = f"{len(one.trainings)} training{'s' * (len(one.trainings) != 1)}"
    yield f"{one.sweep} of {one.user}: {how_many}, {_counts(one)}; {one.metric} ({one.direction})"
    if best is not None:
        told = f" ({listed(best.params)})" if best.params else ""
        yield f"best so far: {best.best:.6g}, job {best.job}{told}"
    saved = f"; stopping saved {one.saved_gpu_h:.2f}" if one.saved_gpu_h else ""
    yield f"GPU-hours: {'not known' if one.gpu_h is None else f'{one.gpu_h:.2f}'}{saved}"
    if changed := sum(bool(training.params_changed) for training in one.trainings):
        yield f"{changed} trainings reported other hyper-parameters after a restart: the latest are used"
    if strange := sum(training.malformed for training in one.trainings):
        yield f"{strange} reports were not usable (no number, malformed, or a step that goes back) and do not count"
    columns = [
        Column("JOB", ">"),
        Column("STATE"),
        Column("GPUS", ">"),
        Column("STEP"),
        Column("BEST", ">"),
        Column("GPU_H", ">"),
        Column("PARAMS"),
        Column("WHY"),
    ]
    cells = (
        (
            training.job,
            training.state,
            training.gpus,
            "-"
            if training.step is None
            else f"{training.step}" + f"/{training.total_steps}" * bool(training.total_steps),
            training.best,
            _hours(training.gpu_h),
            listed((key, value) for key, value in training.params if key in varied),
            training.reason,
        )
        for training in one.trainings
    )
    yield from lines(columns, cells, room())
