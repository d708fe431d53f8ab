"""The options of `simulate` and `compare` that say what is replayed, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from explsched.cli import input_file
from simulation.cli.replay import TraceReplay
from simulation.cluster.settings import Estimates, EstimateSource, Settings, SimulationSettingsError, shard_rule
from simulation.traces import formats
from simulation.traces.formats.cluster import read_cluster
from simulation.traces.trace import ClusterShape, Rejected, Trace, TraceJob, fit, require_all_rows

if TYPE_CHECKING:
    from sched_policy.catalog import PolicyOptions
    from simulation.muri import MuriOptions

_SHOWN_ROWS = 3
_DEFAULT = Settings()
_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets a `replay` made of them."""

    @wraps(command)
    def wrapped(
        trace_path: Path,
        trace_format: str | None,
        cluster: str,
        conventions: str,
        history_path: Path | None,
        config_path: Path | None,
        is_strict: bool,  # noqa: FBT001  click passes by name
        **others: Any,  # noqa: ANN401  the options of the convention, and those of the command
    ) -> None:
        how = _how(conventions, {name: others.pop(name) for name in {**_SLURM, **_MURI}})
        options, shape = _site_options(config_path, conventions), read_cluster(cluster)
        if history_path is not None:
            _check_history(how, history_path, trace_path)
        trace = _read(trace_path, trace_format, shape, is_strict=is_strict)
        if history_path is not None:
            how = replace(how, history=_earlier(history_path, trace))
        command(replay=TraceReplay(trace, shape, how, options, history_path), **others)

    made: Callable[..., None] = wrapped
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def cluster_option(*, required: bool) -> _Decorator:
    """`--cluster`: the cluster's shape."""
    return click.option(
        "--cluster",
        required=required,
        metavar="NODESxGPUS|FILE",
        callback=input_file,
        help="Shape such as 8x8, or a file: YAML or JSON with nodes and gpus_per_node, or Muri's CSV.",
    )


def report_rejected(path: Path, rejected: Sequence[Rejected]) -> None:
    """Report on stderr which rows of a file were left out, if any."""
    if not rejected:
        return
    click.echo(f"{path}: {len(rejected):,} row{'s' if len(rejected) > 1 else ''} left out", err=True)
    for row in rejected[:_SHOWN_ROWS]:
        click.echo(f"  line {row.line}: {row.reason}", err=True)
    if len(rejected) > _SHOWN_ROWS:
        click.echo(f"  and {len(rejected) - _SHOWN_ROWS:,} more", err=True)


def _read(path: Path, trace_format: str | None, cluster: ClusterShape, *, is_strict: bool) -> Trace:
    trace = fit(formats.read_any(path, trace_format), cluster)
    if is_strict or not trace.jobs:
        require_all_rows(path, trace.rejected)
    report_rejected(path, trace.rejected)
    return trace


def _how(conventions: str, given: Mapping[str, Any]) -> Settings | MuriOptions:
    """The settings of the conventions; options that were not given keep the defaults of the conventions."""
    mine = _SLURM.keys() if conventions == "slurm" else _MURI.keys()
    flags = {**{name: setting.flag for name, setting in _SLURM.items()}, **_MURI}
    wrong = [flag for name, flag in flags.items() if given[name] is not None and name not in mine]
    if wrong:
        raise click.UsageError(f"{', '.join(wrong)}: not accepted with --conventions {conventions}")
    chosen = {name: given[name] for name in mine if given[name] is not None}
    if conventions == "muri":
        from sched_policy.group.interleave import Ordering
        from simulation.muri import Durations, Grouping, MuriOptions, Shares

        kinds = {"durations": Durations, "ordering": Ordering, "grouping": Grouping, "shares": Shares}
        for name, kind in kinds.items():
            if name in chosen:
                chosen[name] = kind(chosen[name])
        return MuriOptions(**chosen)
    try:
        if "estimates" in chosen:
            chosen["estimates"] = Estimates.parse(chosen["estimates"])
        if "shard_rule" in chosen:
            chosen["shard_rule"] = shard_rule(chosen["shard_rule"])
        return Settings(**chosen)
    except SimulationSettingsError as error:
        name, colon, fault = str(error).partition(":")
        raise click.UsageError(f"{_SLURM[name].flag if name in _SLURM else name}{colon}{fault}") from error


def _check_history(how: Settings | MuriOptions, path: Path, trace_path: Path) -> None:
    """Raise `UsageError` where nothing learns from a history, or if it is the trace: policies would know the future."""
    if not isinstance(how, Settings) or how.estimates.source is not EstimateSource.LEARNT:
        raise click.UsageError("--history: accepted with --estimates learnt only")
    try:
        is_trace = path.samefile(trace_path)
    except (OSError, ValueError):
        return  # who opens it tells what is wrong
    if is_trace:
        raise click.UsageError(f"--history: {path} is the trace itself, accepted: a trace of earlier jobs")


def _earlier(path: Path, trace: Trace) -> tuple[TraceJob, ...]:
    """The jobs of a history, without those of the trace and without later ones; warnings tell of these.

    Only files of sacct tell when a job ended. A job of both files ended too late, so that it is left out even where its
    id is another in each, as that of a task of an array may be.
    """
    history = formats.read_any(path)
    report_rejected(path, history.rejected)
    own = {_identity(job) for job in trace.jobs}
    others = [job for job in history.jobs if _identity(job) not in own]
    if twice := len(history.jobs) - len(others):
        click.echo(f"warning: {path}: {twice:,} jobs left out that the trace has as well", err=True)
    began_s = min((job.recorded.arrived_s for job in trace.jobs if job.recorded), default=inf)
    earlier = tuple(job for job in others if job.recorded is None or job.recorded.ended_s <= began_s)
    if later := len(others) - len(earlier):
        on = datetime.fromtimestamp(began_s, UTC).date()
        click.echo(f"warning: {path}: {later:,} jobs left out that ended after the trace began ({on})", err=True)
    return earlier


def _identity(job: TraceJob) -> tuple[int, int, float, str]:
    """What a job has in every file that it is in; submit times count from each file's first job."""
    return job.job_id, job.gpus, job.run_s, job.user


def _site_options(path: Path | None, conventions: str) -> PolicyOptions | None:
    """Those of a site's configuration; None without one. Raises `ConfigError`."""
    if path is None:
        return None
    if conventions != "slurm":
        raise click.UsageError(f"--config: not accepted with --conventions {conventions}")
    from slurm_plugin import config

    return config.load(path).policy_options()


class _Setting(NamedTuple):
    """An option of the slurm conventions, which is named as its field of `Settings`."""

    flag: str
    kind: type | click.IntRange
    metavar: str
    text: str

    def option(self, name: str) -> _Decorator:
        """As click has it; None if it is not given, so that other conventions can refuse it."""
        default = getattr(_DEFAULT, name)
        if default is None:
            default = "off" if name.endswith("interval_s") else "none"
        shown = f"{default:g}" if isinstance(default, float) else default
        text = f"{self.text}  [slurm conventions; default: {shown}]"
        return click.option(self.flag, name, type=self.kind, metavar=self.metavar, help=text)


_SLURM = {
    "estimates": _Setting(
        "--estimates", str, "exact|limit|learnt|noisy:SIGMA", "Run-time estimates that policies get."
    ),
    "interval_s": _Setting("--interval", float, "SECONDS", "Time between passes of the policy."),
    "backfill_interval_s": _Setting(
        "--backfill-interval", float, "SECONDS", "Time between passes of Slurm's backfill."
    ),
    "backfill_offset_s": _Setting("--backfill-offset", float, "SECONDS", "Phase offset of the backfill cycle."),
    "main_interval_s": _Setting("--main-interval", float, "SECONDS", "Time between passes of Slurm's main scheduler."),
    "main_offset_s": _Setting("--main-offset", float, "SECONDS", "Phase offset of the main scheduler's cycle."),
    "checkpoint_s": _Setting("--checkpoint", float, "SECONDS", "Time that a preempted job takes to save."),
    "restart_s": _Setting("--restart", float, "SECONDS", "Time that a restarted job takes to load."),
    "shards": _Setting(
        "--shards",
        click.IntRange(min=1),
        "N",
        (
            "Shards per GPU; each job takes one, and Slurm gives a free one to the next job. Needs --main-interval or "
            "--backfill-interval."
        ),
    ),
    "shard_rule": _Setting(
        "--shard-rule", str, "first-fit|least-loaded", "How Slurm chooses among GPUs with free shards."
    ),
    "scaling": _Setting("--scaling", float, "EXPONENT", "Speed of elastic jobs is GPUs ^ EXPONENT; 1 is linear."),
    "seed": _Setting("--seed", click.IntRange(min=0), "N", "Random seed for estimate noise."),
    "until_s": _Setting("--until", float, "SECONDS", "End at this time of the trace, even if jobs still run."),
}
_MURI = {
    "autopack": "--autopack",
    "max_members": "--max-members",
    "ordering": "--stage-order",
    "grouping": "--grouping",
    "durations": "--durations",
    "shares": "--shares",
}
_OPTIONS: tuple[_Decorator, ...] = (
    click.option(
        "--trace",
        "trace_path",
        required=True,
        type=click.Path(path_type=Path),
        callback=input_file,
        help="File of jobs; `sexplsched trace --help` describes the formats.",
    ),
    click.option(
        "--format",
        "trace_format",
        type=click.Choice(formats.NAMES),
        help="Format of the trace.  [default: detected from the header]",
    ),
    cluster_option(required=True),
    click.option(
        "--conventions",
        type=click.Choice(["slurm", "muri"]),
        default="slurm",
        show_default=True,
        help="Simulate a Slurm cluster, or reproduce the published simulator of Muri.",
    ),
    *(setting.option(name) for name, setting in _SLURM.items()),
    click.option(
        "--history",
        "history_path",
        type=click.Path(path_type=Path),
        callback=input_file,
        help="Trace of earlier jobs, for --estimates learnt.  [slurm conventions]",
    ),
    click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        callback=input_file,
        help="explsched.yaml whose options policies get: quantum, preemption, backfill, las, elastic, utility.  "
        "[slurm conventions; default: the defaults of explsched.yaml, whatever /etc has]",
    ),
    click.option(
        "--autopack/--no-autopack",
        default=None,
        help="Split groups slower than their jobs in sequence (muri-s, muri-l).  [muri conventions; default: no]",
    ),
    click.option(
        "--max-members",
        type=click.IntRange(1, 4),
        metavar="N",
        help="Maximum number of jobs per group (muri-s, muri-l, explsched-share).  [muri conventions; default: 4]",
    ),
    click.option(
        "--grouping",
        type=click.Choice(["matching", "in-order"]),
        help="Group jobs by matching, or in queue order (muri-s, muri-l).  [muri conventions; default: matching]",
    ),
    click.option(
        "--stage-order",
        "ordering",
        type=click.Choice(["best", "worst"]),
        help="Order of a group's stages (muri-s, muri-l).  [muri conventions; default: best]",
    ),
    click.option(
        "--durations",
        type=click.Choice(["known", "learnt"]),
        help="Run times for explsched-share: exact, as for muri-s, or learnt from ended jobs, as for muri-l.  "
        "[muri conventions; default: known]",
    ),
    click.option(
        "--shares",
        type=click.Choice(["central", "early", "whole", "solver"]),
        help="Time shares of themis: the centre of all optimal ones, what the original's second solver returns, all 1, "
        "or by cvxpy.  [muri conventions; default: central]",
    ),
    click.option("--strict", "is_strict", is_flag=True, help="Fail if any row of the trace cannot be used."),
)
