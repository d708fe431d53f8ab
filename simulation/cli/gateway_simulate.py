"""`sexplsched gateway simulate`: replay recorded requests under scaling rules."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from explsched.cli import examples, input_file, json_option
from explsched.tables import room
from inference_gateway.errors import GatewayError
from inference_gateway.scaling.rules import DEFAULT, Bounds, ScalingError, build, rules
from simulation.cli.outputs import PolicyColumn, picture_file, table
from simulation.cli.parallel import bars
from simulation.cli.replay_options import report_rejected
from simulation.requests import replay as plots
from simulation.requests.replay import Point, RequestReplay
from simulation.requests.settings import RequestReplayError, RequestSettings, ServiceTime, StartTime, StepTime
from simulation.requests.trace import RequestTrace, read, spread
from simulation.traces.trace import require_all_rows

_DEFAULT = RequestSettings()


def replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets a `replay` and `described`, its JSON fields."""

    @wraps(command)
    def wrapped(
        requests_path: Path,
        is_strict: bool,  # noqa: FBT001  click passes by name
        spread_s: float,
        service_time: str | None,
        step_time: str | None,
        start_time: str,
        bounds: tuple[int, int, int],
        numbers: dict[str, Any],
        **others: Any,  # noqa: ANN401  those of the command
    ) -> None:
        trace = _read(requests_path, spread_s, is_strict=is_strict)
        try:
            model = _model(service_time, step_time)
            settings = RequestSettings(start=StartTime.parse(start_time), bounds=Bounds(*bounds), **numbers)
        except GatewayError as error:
            raise click.UsageError(str(error)) from error
        replay = RequestReplay.of(trace, model, settings)
        if model is not None and any(request.service_s is not None for request in trace.requests):
            click.echo(f"warning: --service-time is not used: {requests_path} has service times", err=True)
        described = {
            "rejected": len(trace.rejected),
            "service_time": service_time,
            "step_time": step_time,
            "capacity": asdict(replay.capacity),
            # JSON has no infinity.
            "settings": {**asdict(settings), "tpot_s": settings.tpot_s if math.isfinite(settings.tpot_s) else None},
        }
        command(replay=replay, described=described, **others)

    def gathered(**given: Any) -> None:  # noqa: ANN401  click's values
        numbers = {name: given.pop(name) for name in _NUMBERS}
        bounds = (given.pop("minimum"), given.pop("maximum"), given.pop("max_pending"))
        wrapped(numbers=numbers, bounds=bounds, **given)

    result: Callable[..., None] = wraps(command)(gathered)
    for option in reversed(_OPTIONS):
        result = option(result)
    return result


def _model(service_time: str | None, step_time: str | None) -> ServiceTime | StepTime | None:
    """How long requests take. Raises `RequestReplayError`."""
    if service_time is not None and step_time is not None:
        raise RequestReplayError("--service-time and --step-time exclude each other")
    if step_time is not None:
        return StepTime.parse(step_time)
    return None if service_time is None else ServiceTime.parse(service_time)


def _read(path: Path, spread_s: float, *, is_strict: bool) -> RequestTrace:
    trace = read(path)
    if is_strict:
        require_all_rows(path, trace.rejected)
    report_rejected(path, trace.rejected)
    return spread(trace, spread_s) if spread_s else trace


_NUMBERS = (
    *("concurrency", "deadline_s", "queue_target_s", "prompt_tokens_per_s"),
    *("slo_s", "tpot_s", "initial", "warmup_s", "seed"),
)
_OPTIONS = (
    click.option(
        "--requests",
        "requests_path",
        required=True,
        type=click.Path(path_type=Path),
        callback=input_file,
        metavar="FILE",
        help="CSV of Azure's LLM traces, JSON lines of Mooncake's, or CSV with arrival_s,service_s.",
    ),
    click.option("--strict", "is_strict", is_flag=True, help="Fail if any row cannot be used."),
    click.option(
        "--spread",
        "spread_s",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="Spread requests with equal times over this many seconds (3 for Mooncake).",
    ),
    click.option(
        "--service-time",
        metavar="SECONDS|PREFILL:DECODE",
        help="Service time of a request: constant, or ms per input and per output token at full concurrency, such as "
        "0.1:25. Required unless the trace has service times, or with --step-time.",
    ),
    click.option(
        "--step-time",
        metavar="BASE:REQUEST:PROMPT",
        help="Continuous batching: ms per step, more per request of the batch, and per prompt token, such as "
        "12:0.35:0.05.",
    ),
    click.option(
        "--start-time",
        default="60",
        show_default=True,
        metavar="SECONDS|MEDIAN:SIGMA",
        help="Time from requesting a replica until it serves; constant or lognormal.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        default=_DEFAULT.concurrency,
        show_default=True,
        help="Requests that a replica serves at once; others queue.",
    ),
    click.option(
        "--deadline",
        "deadline_s",
        type=float,
        default=_DEFAULT.deadline_s,
        show_default=True,
        help="Seconds until a queued request fails.",
    ),
    click.option(
        "--queue-target",
        "queue_target_s",
        type=float,
        default=_DEFAULT.queue_target_s,
        show_default=True,
        help="Target queueing delay, s; late requests are deprioritised (0: FIFO).",
    ),
    click.option(
        "--prompt-tokens-per-s",
        type=float,
        default=_DEFAULT.prompt_tokens_per_s,
        show_default="measured",
        help="Prefill rate; requests go to the replica with the fewest prompt tokens left (0: fewest requests).",
    ),
    click.option(
        "--slo-s",
        type=float,
        default=_DEFAULT.slo_s,
        show_default=True,
        help="SLO: seconds from arrival to the first token (without --step-time: until a replica takes the request).",
    ),
    click.option(
        "--tpot-s",
        type=float,
        default=_DEFAULT.tpot_s,
        show_default=True,
        help="SLO: mean seconds per token after the first one. Needs a trace with tokens.",
    ),
    click.option("--initial", type=click.IntRange(min=0), help="Replicas that are ready at time 0.  [default: --min]"),
    click.option(
        "--warmup",
        "warmup_s",
        type=float,
        default=0.0,
        help="Exclude everything before this second from the figures.",
    ),
    click.option(
        "--min",
        "minimum",
        type=int,
        default=_DEFAULT.bounds.minimum,
        show_default=True,
        help="Minimum number of replicas.",
    ),
    click.option(
        "--max",
        "maximum",
        type=int,
        default=_DEFAULT.bounds.maximum,
        show_default=True,
        help="Maximum number of replicas.",
    ),
    click.option(
        "--max-pending",
        type=int,
        default=_DEFAULT.bounds.max_pending,
        show_default=True,
        help="Maximum number of replicas that start at once.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, help="Random seed for start times."),
)


_SWEPT = "utilization"


@dataclass(frozen=True, slots=True)
class RuleRun:
    """A rule with its options. `target` is the swept value, None for a run that is not part of a sweep."""

    rule: str
    options: Mapping[str, str]
    target: float | None


def _sweep(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise click.BadParameter(f"{text!r} (accepted: comma-separated numbers such as 0.6,0.8,1)") from error


@click.command(
    epilog=examples(
        "sexplsched gateway simulate --requests requests.csv --concurrency 4",
        "sexplsched gateway simulate --requests requests.csv --rule target --rule knative --plot rules.png",
    )
    + "\n\nRules and their options with defaults: "
    + "; ".join(f"{kind.name}: {kind.described()}" for kind in rules().values())
)
@replay_options
@click.option(
    "--rule", "rules", multiple=True, metavar="RULE", help=f"One of {', '.join(rules())}; repeat for several."
)
@click.option(
    "--option", "options", multiple=True, metavar="[RULE.]NAME=VALUE", help="Option of a rule; may be repeated."
)
@click.option(
    "--sweep",
    "targets",
    callback=_sweep,
    metavar="A,B,...",
    help=f"Also run with these values of the option `{_SWEPT}`.",
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=picture_file,
    help="Plot SLO misses over replica-seconds to this .png, .svg or .pdf.",
)
@json_option
def simulate(
    replay: RequestReplay,
    described: Mapping[str, object],
    rules: tuple[str, ...],
    options: tuple[str, ...],
    targets: tuple[float, ...],
    plot_path: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Replay recorded requests under scaling rules.

    Prints SLO misses, replica-seconds and queueing delays. The rules are those that the gateway runs. A replica serves
    --concurrency requests at once, each for --service-time, or all in steps that grow with the batch (--step-time).
    Rules start from the mean service time of the first 100 requests, and then measure it as in the gateway. A replica
    costs from the moment it is requested until it has drained.
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
    if as_json:
        figures = [_figures(run, point) for run, point in zip(runs, points, strict=True)]
        answer = {**figures[0], **described} if len(figures) == 1 else {**described, "runs": figures}
        click.echo(json.dumps(answer, indent=1))
    else:
        columns = [
            PolicyColumn(run.rule if run.target is None else f"{run.rule} {run.target:g}", _numbers(point))
            for run, point in zip(runs, points, strict=True)
        ]
        click.echo("\n".join(table(columns, room())))
    if plot_path is not None:
        curves = {name: [p for run, p in zip(runs, points, strict=True) if run.rule == name] for name in names}
        plots.draw({"": curves}, plot_path)


def _runs(names: Sequence[str], options: Sequence[str], targets: Sequence[float]) -> list[RuleRun]:
    given: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in options:
        key, equals, value = text.partition("=")
        rule, dot, option = key.rpartition(".")
        if not equals or (dot and rule not in given):
            raise click.UsageError(
                f"--option {text!r} (accepted: NAME=VALUE, or RULE.NAME=VALUE for a rule that --rule names)"
            )
        for name in (rule,) if dot else names:
            given[name][option] = value
    return [
        RuleRun(name, given[name] if target is None else {**given[name], _SWEPT: repr(target)}, target)
        for name in names
        for target in (None, *targets)
    ]


def _measured(
    replay: RequestReplay,
    run: RuleRun,
    names: Sequence[str],
    runs: Sequence[RuleRun],
    report: Callable[[int, int, int], None],
) -> Point:
    mine = [other for other in runs if other.rule == run.rule]
    before = mine.index(run)
    bar = names.index(run.rule)

    def progress(done: int, total: int) -> None:
        report(bar, before * total + done, len(mine) * total)

    return Point(run.target, replay.measured(run.rule, run.options, progress))


def _figures(run: RuleRun, point: Point) -> dict[str, object]:
    return {**asdict(point.metrics), "options": dict(run.options)}


def _numbers(point: Point) -> dict[str, float | None]:
    return {name: value for name, value in asdict(point.metrics).items() if name != "rule"}
