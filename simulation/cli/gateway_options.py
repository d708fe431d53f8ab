"""The options that say what is replayed and how replicas behave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

import click

from inference_gateway.errors import GatewayError
from inference_gateway.scaling.bounds import Bounds
from simulation.cli.replaying import report_rejected
from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestSettings, ServiceTime, StartTime
from simulation.requests.trace import RequestTrace, read, spread
from simulation.traces.trace import require_all_rows

_DEFAULT = RequestSettings()


def replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, and hand it a `replay` and what JSON says of it, `described`."""

    @wraps(command)
    def wrapped(
        requests_path: Path,
        is_strict: bool,  # noqa: FBT001  click passes by name
        spread_s: float,
        service_time: str | None,
        start_time: str,
        bounds: tuple[int, int, int],
        numbers: dict[str, Any],
        **others: Any,  # noqa: ANN401  those of the command
    ) -> None:
        trace = _read(requests_path, spread_s, is_strict=is_strict)
        try:
            model = None if service_time is None else ServiceTime.parse(service_time)
            settings = RequestSettings(start=StartTime.parse(start_time), bounds=Bounds(*bounds), **numbers)
        except GatewayError as error:
            raise click.UsageError(str(error)) from error
        replay = RequestReplay.of(trace, model, settings)
        described = {
            "rejected": len(trace.rejected),
            "service_time": service_time,
            "capacity": asdict(replay.capacity),
            "settings": asdict(settings),
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


def _read(path: Path, spread_s: float, *, is_strict: bool) -> RequestTrace:
    trace = read(path)
    if is_strict:
        require_all_rows(path, trace.rejected)
    report_rejected(path, trace.rejected)
    return spread(trace, spread_s) if spread_s else trace


_NUMBERS = ("concurrency", "deadline_s", "queue_target_s", "slo_s", "initial", "warmup_s", "seed")
_OPTIONS = (
    click.option(
        "--requests",
        "requests_path",
        required=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="CSV of Azure's LLM traces, JSON lines of Mooncake's, or CSV with arrival_s,service_s.",
    ),
    click.option("--strict", "is_strict", is_flag=True, help="Fail if any row cannot be used."),
    click.option(
        "--spread",
        "spread_s",
        type=click.FloatRange(min=0),
        default=0.0,
        metavar="SECONDS",
        help="Spread requests with the same time over the seconds after it (Mooncake's clock: 3).",
    ),
    click.option(
        "--service-time",
        metavar="SECONDS|PREFILL:DECODE",
        help="How long a replica works on a request: constant, or ms per input and per output token at full "
        "concurrency, such as 0.1:25. Needed unless the trace says it.",
    ),
    click.option(
        "--start-time",
        default="60",
        show_default=True,
        metavar="SECONDS|MEDIAN:SIGMA",
        help="From asking for a replica until it serves; constant or lognormal.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        default=_DEFAULT.concurrency,
        show_default=True,
        help="Requests a replica serves at once; more wait in the queue.",
    ),
    click.option(
        "--deadline", "deadline_s", type=float, default=_DEFAULT.deadline_s, show_default=True, help="Longest wait, s."
    ),
    click.option(
        "--queue-target",
        "queue_target_s",
        type=float,
        default=_DEFAULT.queue_target_s,
        show_default=True,
        help="Who has waited longer lets others pass, s; 0: first in, first out.",
    ),
    click.option(
        "--slo-s",
        type=float,
        default=_DEFAULT.slo_s,
        show_default=True,
        help="Longest wait within the SLO, from arrival until a replica takes the request.",
    ),
    click.option("--initial", type=click.IntRange(min=0), help="Replicas ready at time 0.  [default: --min]"),
    click.option("--warmup", "warmup_s", type=float, default=0.0, help="Figures count from this second on."),
    click.option("--min", "minimum", type=int, default=_DEFAULT.bounds.minimum, show_default=True, help="Replicas."),
    click.option("--max", "maximum", type=int, default=_DEFAULT.bounds.maximum, show_default=True, help="Replicas."),
    click.option(
        "--max-pending",
        type=int,
        default=_DEFAULT.bounds.max_pending,
        show_default=True,
        help="Replicas that may be starting at once.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, help="Of random start times."),
)
