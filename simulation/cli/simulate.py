"""`sexplsched simulate`: replay a trace under one policy."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from explsched.cli.options import json_option
from explsched.cli.progress_bars import bars
from simulation.cli.outputs import figure_lines, jobs_option, plot_option, write_files
from simulation.cli.replay_options import check_policies, replay_json, replay_options
from simulation.replay import TraceReplay
from simulation.results.metrics import as_dict, measure

_EXAMPLES = """\b
example:
  sexplsched simulate --trace history.txt --cluster 8x8 --policy srsf --plot srsf.png
"""


@click.command(epilog=_EXAMPLES)
@replay_options
@click.option("--policy", required=True, help="Policy to simulate; `sexplsched policies` lists them.")
@plot_option
@jobs_option
@json_option
def simulate(
    replay: TraceReplay,
    policy: str,
    plot_path: Path | None,
    jobs_path: Path | None,
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
    cpu_s = time.process_time()
    write_files([outcome], plot_path, jobs_path)
    if as_json:
        figures = {"policy": policy, **as_dict(metrics), "events": outcome.events, "cpu_s": round(cpu_s, 3)}
        click.echo(json.dumps({**figures, **replay_json(replay, [policy])}, indent=1))
        return
    click.echo(f"{policy} on {replay.cluster.gpus} GPUs, {outcome.events} events, {cpu_s:.1f} s of CPU")
    click.echo("\n".join(figure_lines(metrics)))
