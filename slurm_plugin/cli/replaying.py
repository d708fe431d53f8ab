"""What `simulate` and `compare` share: the options that say what is replayed and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sched_policy.errors import PolicyError
from sched_policy.simulator.replay import Replay, without_oversized
from sched_policy.simulator.settings import Estimates, Settings, SettingsError
from sched_policy.simulator.trace import ClusterShape, Trace, TraceError

if TYPE_CHECKING:
    from sched_policy.simulator.muri import MuriOptions

_SHOWN_ROWS = 3
_DEFAULT = Settings()


def replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, and hand it a `replay` made of them."""

    @wraps(command)
    def wrapped(
        trace_path: Path,
        trace_format: str | None,
        cluster: str,
        conventions: str,
        strict: bool,  # noqa: FBT001  click passes by name
        **others: Any,  # noqa: ANN401  the options of the convention, and those of the command
    ) -> None:
        how = _how(conventions, {name: others.pop(name) for name in (*_SLURM, *_MURI)})
        shape = read_cluster(cluster)
        command(replay=Replay(_read(trace_path, trace_format, shape, strict=strict), shape, how), **others)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def output_file(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that could not be written after a long run. A click callback."""
    if path is not None and not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{path}: there is no directory {path.absolute().parent}")
    return path


def picture_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn after a long run. A click callback."""
    if path is not None:
        from sched_policy.simulator import plots

        try:
            plots.check(path)
        except plots.PlotError as error:
            raise click.BadParameter(str(error)) from error
    return output_file(ctx, param, path)


plot_option = click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=picture_file,
    help="Draw JCTs, utilisation and, for few jobs, a Gantt chart to this .png, .svg or .pdf.",
)


def known_policy(replay: Replay, name: str) -> None:
    """Refuse a policy that the convention does not know, as wrong usage."""
    try:
        replay.check(name)
    except PolicyError as error:
        raise click.BadParameter(str(error)) from error


def report_rejected(path: Path, trace: Trace) -> None:
    """Say on stderr which rows of a trace were left out, if any."""
    count = len(trace.rejected)
    if not count:
        return
    click.echo(f"{path}: {count} row{'s' if count > 1 else ''} left out", err=True)
    for row in trace.rejected[:_SHOWN_ROWS]:
        click.echo(f"  line {row.line}: {row.reason}", err=True)
    if count > _SHOWN_ROWS:
        click.echo(f"  and {count - _SHOWN_ROWS} more", err=True)


def read_cluster(word_or_path: str) -> ClusterShape:
    """The cluster that `--cluster` names. Raises `TraceError`."""
    from sched_policy.simulator.formats import cluster

    return cluster.read(word_or_path)


def _read(path: Path, trace_format: str | None, cluster: ClusterShape, *, strict: bool) -> Trace:
    from sched_policy.simulator.formats import read_any

    trace = read_any(path, trace_format)
    if strict and trace.rejected:
        first = trace.rejected[0]
        raise TraceError(f"{path}: {len(trace.rejected)} unusable rows (--strict), the first in line {first.line}: {first.reason}")
    report_rejected(path, trace)
    fitting, oversized = without_oversized(trace, cluster)
    if oversized:
        what = f"{path}: {len(oversized)} jobs ask for more than the cluster's {cluster.gpus} GPUs, the first is job {oversized[0].job_id} with {oversized[0].gpus}"
        if strict or not fitting.jobs:
            raise TraceError(what)
        click.echo(f"{what}; left out", err=True)
    return fitting


def _how(conventions: str, given: Mapping[str, Any]) -> Settings | MuriOptions:
    """The convention with what was given for it; what was not given has the convention's own default."""
    mine, other = (_SLURM, _MURI) if conventions == "slurm" else (_MURI, _SLURM)
    wrong = [option for name, option in other.items() if given[name] is not None]
    if wrong:
        raise click.UsageError(f"--conventions {conventions} has no {', '.join(wrong)}")
    chosen = {name: given[name] for name in mine if given[name] is not None}
    if conventions == "muri":
        from sched_policy.simulator.muri import MuriOptions

        return MuriOptions(**chosen)
    try:
        if "estimates" in chosen:
            chosen["estimates"] = Estimates.parse(chosen["estimates"])
        return Settings(**chosen)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


_SLURM = {
    "estimates": "--estimates",
    "interval_s": "--interval",
    "checkpoint_s": "--checkpoint",
    "restart_s": "--restart",
    "seed": "--seed",
}
_MURI: dict[str, str] = {}
_OPTIONS = (
    click.option(
        "--trace",
        "trace_path",
        required=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Jobs to replay: a Muri or Philly CSV, output of sacct --parsable2, or a CSV of explsched's own format.",
    ),
    click.option("--format", "trace_format", help="The trace's format, where the header does not tell."),
    click.option("--cluster", required=True, metavar="NODESxGPUS|FILE", help="Such as 8x8, or a file that describes it."),
    click.option(
        "--conventions",
        type=click.Choice(["slurm", "muri"]),
        default="slurm",
        show_default=True,
        help="slurm: intervals, restart costs, gangs on nodes, time limits. muri: as the published simulator, to check figures.",
    ),
    click.option(
        "--estimates",
        metavar="exact|limit|noisy:SIGMA",
        help=f"What policies are told about run times (slurm).  [default: {_DEFAULT.estimates}]",
    ),
    click.option("--interval", "interval_s", type=float, help=f"Seconds between passes of the policy (slurm).  [default: {_DEFAULT.interval_s:g}]"),
    click.option("--checkpoint", "checkpoint_s", type=float, help=f"Seconds a preempted job saves (slurm).  [default: {_DEFAULT.checkpoint_s:g}]"),
    click.option("--restart", "restart_s", type=float, help=f"Seconds a restarted job loads (slurm).  [default: {_DEFAULT.restart_s:g}]"),
    click.option("--seed", type=int, help=f"Of the noise in estimates (slurm).  [default: {_DEFAULT.seed}]"),
    click.option("--strict", is_flag=True, help="Fail if rows of the trace cannot be used, instead of leaving them out."),
)
