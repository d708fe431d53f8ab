"""`python -m benchmarks.live_replay --trace FILE`: Slurm alone and explsched live, and the simulator beside both."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.live_replay import figures, live
from benchmarks.live_replay.workload import CLUSTER, compressed
from sched_policy import catalog
from sched_policy.options import PolicyOptions
from sched_policy.simulator.checks import fit
from sched_policy.simulator.formats import read_any
from sched_policy.simulator.settings import Settings
from sched_policy.simulator.trace import Trace

# From the signal to free GPUs: the checkpoint is seen at the next pass, and the requeue takes about one more.
_CHECKPOINT_S = 2 * live.INTERVAL_S


@click.command()
@click.option("--trace", "path", required=True, type=click.Path(path_type=Path), help="Jobs, in any known format.")
@click.option("--jobs", default=200, show_default=True, type=click.IntRange(min=1), help="The first so many.")
@click.option("--policy", default="srsf", show_default=True, type=click.Choice(catalog.names()), help="Of explsched.")
@click.option(
    "--compress", default=10_000.0, show_default=True, type=click.FloatRange(min=1), help="Divides all times."
)
@click.option("--seed", default=1, show_default=True, help="Of the users' time limits.")
@click.option("--longest", "longest_s", default=1200.0, show_default=True, help="Seconds an arm may take.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures alone.")
def main(
    path: Path,
    jobs: int,
    policy: str,
    compress: float,
    seed: int,
    longest_s: float,
    out: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Replay the first jobs of a trace on private clusters of 4 nodes x 8 GPUs and compare."""
    trace = compressed(fit(read_any(path), CLUSTER), jobs, compress, seed)
    arms: dict[str, dict[str, object]] = {}
    both: list[tuple[figures.Figures, figures.Figures]] = []
    lost = 0
    for name, own in (("slurm", None), (policy, live.daemon_settings(policy))):
        before = os.getloadavg()[0]
        done = _live(name, trace, own, longest_s)
        launch_s = figures.launch_s(done)
        settings = Settings(live.INTERVAL_S, checkpoint_s=_CHECKPOINT_S, restart_s=launch_s)
        shown = figures.live(done)
        simulated = figures.simulated(trace, name, PolicyOptions(quantum_s=live.QUANTUM_S), settings, launch_s)
        both.append((shown, simulated))
        lost += figures.lost(done)
        arms[name] = {
            "live": asdict(shown),
            "simulated": asdict(simulated),
            "launch_s": launch_s,
            "sim_error_jct": figures.error(simulated.avg_jct_s, shown.avg_jct_s),
            "sim_error_makespan": figures.error(simulated.makespan_s, shown.makespan_s),
            "load_before_after": [before, os.getloadavg()[0]],
        }
    (stock, _), (ours, _) = both
    result = {
        "policy": policy,
        "jobs": len(trace.jobs),
        "compress": compress,
        "estimates": "time limits of 1.2 to 10 times the run time",
        "arms": arms,
        "jct_ratio": stock.avg_jct_s / ours.avg_jct_s,
        "makespan_ratio": stock.makespan_s / ours.makespan_s,
        "sim_error_jct": max((figures.error(s.avg_jct_s, m.avg_jct_s) for m, s in both), key=abs),
        "sim_error_makespan": max((figures.error(s.makespan_s, m.makespan_s) for m, s in both), key=abs),
        "jobs_lost": lost,
    }
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not as_json:
        Console(stderr=True).print(result)
    click.echo(json.dumps(result))


def _live(name: str, trace: Trace, settings: Mapping[str, object] | None, longest_s: float) -> list[live.LiveJob]:
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
