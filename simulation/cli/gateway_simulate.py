"""`sexplsched gateway simulate`: replay recorded requests under scaling rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from explsched.cli.options import json_option
from explsched.cli.progress_bars import bars
from explsched.cli.tables import room
from inference_gateway.scaling.options import ScalingError
from inference_gateway.scaling.registry import DEFAULT, build, rules
from simulation.cli.figures import Column, table
from simulation.cli.gateway_options import replay_options
from simulation.cli.outputs import picture_file
from simulation.requests import plots
from simulation.requests.plots import Point
from simulation.requests.replay import Replay

_SWEPT = "utilization"


@dataclass(frozen=True, slots=True)
class Run:
    """A rule with its options. `target` is the swept value, None for a run that is not part of a sweep."""

    rule: str
    options: Mapping[str, str]
    target: float | None


def _sweep(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: accepted are numbers with commas between, such as 0.6,0.8,1") from error


@click.command(
    epilog="Rules and their options with defaults: "
    + "; ".join(f"{kind.name}: {kind.described()}" for kind in rules().values())
)
@replay_options
@click.option("--rule", "rules", multiple=True, metavar="RULE", help=f"{', '.join(rules())}; again for more rules.")
@click.option("--option", "options", multiple=True, metavar="[RULE.]NAME=VALUE", help="Of the rule; may be repeated.")
@click.option(
    "--sweep", "targets", callback=_sweep, metavar="A,B,...", help=f"Also run with these values of `{_SWEPT}`."
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=picture_file,
    help="Draw SLO misses over replica-seconds to this .png, .svg or .pdf.",
)
@json_option
def simulate(
    replay: Replay,
    described: Mapping[str, object],
    rules: tuple[str, ...],
    options: tuple[str, ...],
    targets: tuple[float, ...],
    plot_path: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Replay recorded requests under scaling rules: SLO misses, replica-seconds, queueing.

    The rules are those that the gateway runs. A replica serves --concurrency requests at once, each as long as
    --service-time says; its capacity, which rules are told, is concurrency / mean service time, in requests per second.
    A replica costs from the moment it is asked for until it has drained.
    """
    names = tuple(dict.fromkeys(rules)) or (DEFAULT,)
    runs = _runs(names, options, targets)
    for run in runs:
        try:
            build(run.rule, run.options, replay.capacity)
        except ScalingError as error:
            raise click.UsageError(str(error)) from error
    with bars(names) as report:
        points = [_measured(replay, run, names, runs, report) for run in runs]
    if plot_path is not None:
        curves = {name: [p for run, p in zip(runs, points, strict=True) if run.rule == name] for name in names}
        plots.draw({"": curves}, plot_path)
    if as_json:
        figures = [_figures(run, point) for run, point in zip(runs, points, strict=True)]
        answer = {**figures[0], **described} if len(figures) == 1 else {**described, "runs": figures}
        click.echo(json.dumps(answer, indent=1))
        return
    columns = [
        Column(run.rule if run.target is None else f"{run.rule} {run.target:g}", _numbers(point))
        for run, point in zip(runs, points, strict=True)
    ]
    click.echo("\n".join(table(columns, room())))


def _runs(names: Sequence[str], options: Sequence[str], targets: Sequence[float]) -> list[Run]:
    given: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in options:
        key, equals, value = text.partition("=")
        rule, dot, option = key.rpartition(".")
        if not equals or (dot and rule not in given):
            raise click.UsageError(f"--option {text!r}: accepted is NAME=VALUE, or RULE.NAME=VALUE with a rule given")
        for name in (rule,) if dot else names:
            given[name][option] = value
    return [
        Run(name, given[name] if target is None else {**given[name], _SWEPT: repr(target)}, target)
        for name in names
        for target in (None, *targets)
    ]


def _measured(
    replay: Replay, run: Run, names: Sequence[str], runs: Sequence[Run], report: Callable[[int, int, int], None]
) -> Point:
    mine = [other for other in runs if other.rule == run.rule]
    before = mine.index(run)
    bar = names.index(run.rule)

    def progress(done: int, total: int) -> None:
        report(bar, before * total + done, len(mine) * total)

    return Point(run.target, replay.measured(run.rule, run.options, progress))


def _figures(run: Run, point: Point) -> dict[str, object]:
    return {**asdict(point.metrics), "options": dict(run.options)}


def _numbers(point: Point) -> dict[str, float | None]:
    return {name: value for name, value in asdict(point.metrics).items() if name != "rule"}
