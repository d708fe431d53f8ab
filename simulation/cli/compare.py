"""`sexplsched compare`: replay a trace under several policies, side by side."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import replace

from explsched.cli.options import json_option
from explsched.cli.progress_bars import bars
from explsched.cli.tables import room
from simulation.cli.figures import Column, ratio, table
from simulation.cli.outputs import plot_option, write_files
from simulation.cli.replaying import described, known_policy, replay_options
from simulation.cli.side_by_side import run_all
from simulation.replay import Replay
from simulation.results.metrics import Metrics, as_dict, measure
from simulation.results.outcome import Outcome

_EXAMPLES = """\b
example:
  sexplsched compare --trace history.txt --cluster 8x8 --policies slurm,srsf,explsched
"""


class Task(Struct, frozen=True):
    """One replay."""

    replay: Replay
    policy: str


class Finished(Struct, frozen=True):
    """The figures of one replay. `cpu_s` is that of the replay alone, without start-up and reading."""

    policy: str
    metrics: Metrics
    events: int
    cpu_s: float
    outcome: Outcome | None

    @property
    def values(self) -> dict[str, float | None]:
        """All figures by name."""
        return {**as_dict(self.metrics), "events": self.events, "cpu_s": round(self.cpu_s, 3)}


def run(task: Task, progress: Callable[[int, int], None]) -> Finished:
    """Replay and measure."""
    before_s = time.process_time()
    outcome = task.replay.under(task.policy, progress)
    cpu_s = time.process_time() - before_s
    return Finished(task.policy, measure(outcome), outcome.events, cpu_s, outcome)


def run_for_figures(task: Task, progress: Callable[[int, int], None]) -> Finished:
    """Replay and measure, and forget the jobs: there may be many, and policies, too."""
    return replace(run(task, progress), outcome=None)


def _policies(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise click.BadParameter(f"{text!r}: accepted are different names with commas between, such as fifo,srsf")
    return names


@click.command(epilog=_EXAMPLES)
@replay_options
@click.option("--policies", required=True, callback=_policies, metavar="A,B,...", help="The first is compared with.")
@click.option("-j", "--jobs", "workers", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
@plot_option
@json_option
def compare(
    replay: Replay,
    policies: tuple[str, ...],
    workers: int | None,
    plot_path: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Replay a trace of jobs under several policies, and set their figures side by side.

    In brackets: the ratio to the first policy. CPU_S is the CPU time of the replay alone.
    """
    for policy in policies:
        known_policy(replay, policy)
    tasks = [Task(replay, policy) for policy in policies]
    with bars(policies) as report:
        work = run if plot_path else run_for_figures
        finished = run_all(work, tasks, workers or len(os.sched_getaffinity(0)), report)
    write_files([one.outcome for one in finished if one.outcome], plot_path, None)
    if as_json:
        click.echo(json.dumps({**described(replay, policies), "policies": _ratios(finished)}, indent=1))
        return
    columns = [Column(one.policy, one.values) for one in finished]
    click.echo("\n".join(table(columns, room())))


def _ratios(finished: Sequence[Finished]) -> list[dict[str, object]]:
    """What JSON says of each policy: its figures, and their ratios to the first policy's."""
    first = finished[0].values
    return [
        {
            "policy": one.policy,
            **one.values,
            "ratios": {name: ratio(value, first[name]) for name, value in one.values.items()},
        }
        for one in finished
    ]
