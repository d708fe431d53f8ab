"""`sexplsched simulate`, `compare` and `metrics`: replay a trace under policies; the figures of a real history."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path

import click
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from explsched.cli import input_file, json_option, moment
from explsched.errors import ExplschedError
from explsched.tables import room
from simulation.cli.outputs import (
    PolicyColumn,
    cluster_csv_option,
    figure_lines,
    jobs_option,
    plot_option,
    ratio,
    table,
    write_files,
)
from simulation.cli.parallel import bars, run_all
from simulation.cli.replay import TraceReplay, check_policies, replay_json
from simulation.cli.replay_options import cluster_option, replay_options, report_rejected
from simulation.results import history
from simulation.results.metrics import Metrics, as_dict, measure
from simulation.results.outcome import Ending, TraceOutcome
from simulation.traces.formats.cluster import read_cluster
from simulation.traces.trace import Trace, require_all_rows

_POLICY_HELP = (
    "Policy to simulate; `sexplsched policies` lists them. explsched:STRATEGY has another sweep strategy (asha, "
    "hyperband, median-stop), explsched:total the objective total."
)
_SIMULATE_EXAMPLES = """\b
example:
  sexplsched simulate --trace history.txt --cluster 8x8 --policy srsf --plot srsf.png
"""


@click.command(epilog=_SIMULATE_EXAMPLES)
@replay_options
@click.option("--policy", required=True, help=_POLICY_HELP)
@plot_option
@jobs_option
@cluster_csv_option
@json_option
def simulate(
    replay: TraceReplay,
    policy: str,
    plot_path: Path | None,
    jobs_path: Path | None,
    series_path: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Replay a trace of jobs under one policy.

    Prints JCT, queueing delay, utilisation and fairness. In JSON, cpu_s is the CPU time of the whole command, user and
    system.
    """
    check_policies(replay, [policy])
    with bars([policy]) as report:
        outcome = replay.under(policy, lambda ended, jobs: report(0, ended, jobs))
    metrics = measure(outcome)
    killed = _killed_for_sharing(replay.trace, outcome)
    cpu_s = time.process_time()
    if as_json:
        figures = {"policy": policy, **as_dict(metrics), "events": outcome.events, "cpu_s": round(cpu_s, 3)}
        click.echo(json.dumps({**figures, **replay_json(replay, [policy], killed)}, indent=1))
    else:
        click.echo(f"{policy} on {replay.cluster.gpus} GPUs, {outcome.events} events, {cpu_s:.1f} s of CPU")
        click.echo("\n".join(figure_lines(metrics)))
    for warning in killed:
        click.echo(f"warning: {warning}", err=True)
    write_files([outcome], plot_path, jobs_path, series_path)


def _killed_for_sharing(trace: Trace, outcome: TraceOutcome) -> tuple[str, ...]:
    """A warning if jobs reached their time limits within which they end when they run alone, without interruption."""
    fits = {job.job_id for job in trace.jobs if job.time_limit_s is not None and job.run_s <= job.time_limit_s}
    killed = sum(job.ending is Ending.TIME_LIMIT and job.job_id in fits for job in outcome.jobs)
    if not killed:
        return ()
    return (f"{killed:,} jobs reached their time limits and would not have alone, which shortens JCTs",)


_COMPARE_EXAMPLES = """\b
examples:
  sexplsched compare --trace history.txt --cluster 8x8 --policies slurm,fifo,srsf,tiresias
  sexplsched compare --trace digits.csv --cluster 1x4 --policies slurm,explsched,explsched:asha
"""


class ReplayTask(Struct, frozen=True):
    """One replay."""

    replay: TraceReplay
    policy: str


class Finished(Struct, frozen=True):
    """The figures of one replay. `cpu_s` is that of the replay alone, without start-up and reading."""

    policy: str
    metrics: Metrics
    events: int
    cpu_s: float
    outcome: TraceOutcome | None

    @property
    def values(self) -> dict[str, float | None]:
        """All figures by name."""
        return {**as_dict(self.metrics), "events": self.events, "cpu_s": round(self.cpu_s, 3)}


class Failed(Struct, frozen=True):
    """A replay that could not go on, and why."""

    policy: str
    error: str


def run(task: ReplayTask, progress: Callable[[int, int], None]) -> Finished | Failed:
    """Replay and measure."""
    before_s = time.process_time()
    try:
        outcome = task.replay.under(task.policy, progress)
    except ExplschedError as error:  # the other policies have their figures nevertheless
        return Failed(task.policy, str(error))
    cpu_s = time.process_time() - before_s
    return Finished(task.policy, measure(outcome), outcome.events, cpu_s, outcome)


def run_for_figures(task: ReplayTask, progress: Callable[[int, int], None]) -> Finished | Failed:
    """Replay and measure without keeping the jobs, which take memory for each policy."""
    ended = run(task, progress)
    return replace(ended, outcome=None) if isinstance(ended, Finished) else ended


def _policies(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise click.BadParameter(f"{text!r} (accepted: distinct names, comma-separated, such as fifo,srsf)")
    return names


@click.command(epilog=_COMPARE_EXAMPLES)
@replay_options
@click.option(
    "--policies",
    required=True,
    callback=_policies,
    metavar="A,B,...",
    help="Comma-separated, named as for `simulate`; the first is the baseline.",
)
@click.option("-j", "--jobs", "workers", type=click.IntRange(min=1), help="Worker processes.  [default: one per core]")
@plot_option
@json_option
def compare(
    replay: TraceReplay,
    policies: tuple[str, ...],
    workers: int | None,
    plot_path: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Replay a trace under several policies and compare them.

    Ratios to the baseline, the first policy, are in brackets. cpu_s is the CPU time of each replay alone. The command
    fails if a policy cannot go on, and has the figures of the others.
    """
    check_policies(replay, policies)
    tasks = [ReplayTask(replay, policy) for policy in policies]
    with bars(policies) as report:
        work = run if plot_path else run_for_figures
        ended = run_all(work, tasks, workers or len(os.sched_getaffinity(0)), report)
    finished = [one for one in ended if isinstance(one, Finished)]
    failed = [one for one in ended if isinstance(one, Failed)]
    columns = [PolicyColumn(one.policy, one.values) for one in finished]
    fewer = _completing_fewer(columns)
    if as_json:
        about = replay_json(replay, policies, fewer)
        click.echo(json.dumps({**about, "policies": _ratios(finished), "failed": to_builtins(failed)}, indent=1))
    elif finished:
        click.echo("\n".join(table(columns, room())))
    for warning in fewer:
        click.echo(f"warning: {warning}", err=True)
    if finished:
        write_files([one.outcome for one in finished if one.outcome], plot_path, None)
    if failed:
        raise click.ClickException("; ".join(f"{one.policy}: {one.error}" for one in failed))


def _completing_fewer(columns: Sequence[PolicyColumn]) -> tuple[str, ...]:
    """A warning if jobs complete their work under one policy and not under others, be it the first."""
    completed = [(one.policy, one.values["completed"] or 0) for one in columns]
    best, most = max(completed, key=itemgetter(1), default=("", 0))
    fewer = [f"{policy} {count:g}" for policy, count in completed if count < most]
    if not fewer:
        return ()
    counts = f"{', '.join(fewer)}; {best} {most:g}"
    return (f"fewer jobs completed their work ({counts}), which shortens JCTs",)


def _ratios(finished: Sequence[Finished]) -> list[dict[str, object]]:
    """JSON fields of each policy: its figures, and their ratios to the baseline's."""
    return [
        {
            "policy": one.policy,
            **one.values,
            "ratios": {name: ratio(value, finished[0].values[name]) for name, value in one.values.items()},
        }
        for one in finished
    ]


_METRICS_EXAMPLES = """\b
example:
  sexplsched metrics --from-sacct history.txt --cluster 8x8 --since 2026-01-01 --until 2026-02-01
"""


@click.command(epilog=_METRICS_EXAMPLES)
@click.option(
    "--from-sacct",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    callback=input_file,
    help="Output of sacct; `sexplsched trace --help` shows the command line.",
)
@cluster_option(required=False)
@click.option(
    "--since",
    "since_s",
    type=moment,
    metavar="TIME",
    help="Measure the cluster's use from there on; sacct's --starttime.  [default: first submission]",
)
@click.option(
    "--until", "until_s", type=moment, metavar="TIME", help="As --since; sacct's --endtime.  [default: last end]"
)
@click.option("--strict", "is_strict", is_flag=True, help="Fail if any row cannot be used.")
@plot_option
@jobs_option
@json_option
def metrics(
    path: Path,
    cluster: str | None,
    since_s: float | None,
    until_s: float | None,
    is_strict: bool,  # noqa: FBT001  click passes by name
    plot_path: Path | None,
    jobs_path: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Measure what happened on a cluster, from sacct's output.

    The figures are those of `simulate` and `compare`. Without --cluster, utilisation and fairness are relative to the
    most GPUs that were ever held at once. --since and --until limit gpu_utilisation and held_gpu_h; figures of jobs are
    those of all jobs in the file.
    """
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise click.BadParameter("must be later than --since", param_hint="--until")
    past = history.read(path, read_cluster(cluster) if cluster else None, since_s, until_s)
    if is_strict:
        require_all_rows(path, past.rejected)
    report_rejected(path, past.rejected)
    figures = measure(past.outcome)
    gpus = past.outcome.cluster.gpus
    if as_json:
        about = {"peak_gpus": past.peak_gpus, "gpus": gpus, "rejected": len(past.rejected)}
        click.echo(json.dumps({"policy": history.NAME, **as_dict(figures), **about}, indent=1))
    else:
        click.echo(f"{path} on {gpus:,} GPUs{'' if cluster else ', the most that were held at once'}")
        click.echo("\n".join(figure_lines(figures)))
    write_files([past.outcome], plot_path, jobs_path)
