"""`python -m benchmarks.live_replay --trace FILE`: Slurm alone and explsched live, and the simulator beside both."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import click
from msgspec import to_builtins
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.live_replay import figures, live, report
from benchmarks.live_replay.workload import CLUSTER, compressed
from sched_policy import catalog
from sched_policy.catalog import PolicyOptions
from simulation.cluster.settings import Settings
from simulation.traces.formats import read_any
from simulation.traces.trace import Trace, fit

# From the signal to free GPUs: the checkpoint is seen at the next pass, and the requeue takes about one more.
_CHECKPOINT_S = 2 * live.INTERVAL_S


@click.command()
@click.option("--trace", "path", required=True, type=click.Path(path_type=Path), help="Jobs, in any known format.")
@click.option("--jobs", default=200, show_default=True, type=click.IntRange(min=1), help="The first so many.")
@click.option(
    "--policy", default="srsf", show_default=True, type=click.Choice(catalog.POLICIES.names()), help="Of explsched."
)
@click.option(
    "--scope",
    default="user",
    show_default=True,
    type=click.Choice(["user", "partition"]),
    help="Among whom it may reorder: all jobs are one user's.",
)
@click.option(
    "--compress", default=20_000.0, show_default=True, type=click.FloatRange(min=1), help="Divides all times."
)
@click.option("--seed", default=1, show_default=True, help="Of the users' time limits.")
@click.option("--longest", "longest_s", default=1200.0, show_default=True, help="Seconds an arm may take.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures to this file.")
@click.option("--again", is_flag=True, help="Add this run to those of --out, if they had the same options.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Also write what became of each job, into this directory."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures alone.")
def main(
    path: Path,
    jobs: int,
    policy: str,
    scope: str,
    compress: float,
    seed: int,
    longest_s: float,
    out: Path | None,
    again: bool,  # noqa: FBT001
    keep: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Replay the first jobs of a trace on private clusters of 4 nodes x 8 GPUs and compare."""
    trace = compressed(fit(read_any(path), CLUSTER), jobs, compress, seed)
    setting = {
        "policy": policy,
        "scope": scope,
        "jobs": len(trace.jobs),
        "compress": compress,
        "seed": seed,
        "quantum_s": live.QUANTUM_S,
        "estimates": "time limits of 1.2 to 10 times the run time",
    }
    earlier = _earlier(out, setting) if out and again else []
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    stock = _arm("slurm", trace, None, longest_s, keep / "slurm.json" if keep else None)
    settings = live.daemon_settings(policy, scope)
    ours = _arm(policy, trace, settings, longest_s, keep / "explsched.json" if keep else None)
    result = report.summary(setting, [*earlier, report.run(stock, ours)])
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not as_json:
        Console(stderr=True).print(result)
    click.echo(json.dumps(result))


def _earlier(out: Path, setting: Mapping[str, object]) -> list[dict[str, object]]:
    """The runs of an earlier result, if it was made in the same way."""
    if not out.exists():
        return []
    found = json.loads(out.read_text(encoding="utf-8"))
    if any(found.get(key) != value for key, value in setting.items()):
        raise click.UsageError(f"{out} holds runs with other options than {dict(setting)}")
    runs: list[dict[str, object]] = found["runs"]
    return runs


def _arm(
    name: str, trace: Trace, settings: Mapping[str, object] | None, longest_s: float, keep: Path | None
) -> report.Arm:
    """An arm live, then the simulator with the cost of a launch and the schedulers' passes as measured in it."""
    before = os.getloadavg()[0]
    done = _live(name, trace, settings, longest_s)
    after = os.getloadavg()[0]
    if keep:
        keep.write_text(json.dumps(asdict(done), default=to_builtins), encoding="utf-8")
    launches_s = figures.launches_s(done.jobs)
    launch_s = fmean(launches_s)
    how = Settings(
        live.INTERVAL_S,
        backfill_interval_s=live.INTERVAL_S,
        main_interval_s=live.INTERVAL_S,
        pass_times=done.pass_times,
        checkpoint_s=_CHECKPOINT_S,
        restart_s=launch_s,
    )
    options = PolicyOptions(quantum_s=live.QUANTUM_S)
    simulated = figures.simulated(figures.submitted(done.jobs), name, options, how, launches_s)
    gaps_s = {who: figures.mean_gap_s(times_s) for who, times_s in to_builtins(done.pass_times).items()}
    return report.Arm(figures.live(done.jobs), simulated, launch_s, gaps_s, figures.lost(done.jobs), (before, after))


def _live(name: str, trace: Trace, settings: Mapping[str, object] | None, longest_s: float) -> live.LiveArm:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Short: a munge socket's path may have about 100 characters.
    with (
        tempfile.TemporaryDirectory(prefix="expl") as scratch,
        Progress(*columns, console=Console(stderr=True)) as bar,
    ):
        Path(scratch).chmod(0o755)
        task = bar.add_task(name, total=len(trace.jobs))
        return live.run(
            Path(scratch), trace, settings, longest_s, lambda ended, _total: bar.update(task, completed=ended)
        )


if __name__ == "__main__":
    main()
