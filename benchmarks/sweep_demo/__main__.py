"""`python -m benchmarks.sweep_demo`: the same sweep by Slurm alone, with ASHA and with explsched, side by side."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.sweep_demo import report
from benchmarks.sweep_demo.run import ASHA, EXPLSCHED, SLURM_ALONE, WITHOUT_STOP, Arm, Outcome, run
from benchmarks.sweep_demo.sweep import LEARNING_RATES
from slurm_plugin.devcluster import DevClusterError, Product


@click.command()
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 20), help="Repeat with so many seeds.")
@click.option(
    "--sweep", default="coarse", show_default=True, type=click.Choice(list(LEARNING_RATES)), help="Which sweep to run."
)
@click.option(
    "--no-stop-arm",
    "more",
    flag_value=(WITHOUT_STOP,),
    default=(),
    type=click.UNPROCESSED,
    help="Run one more arm: explsched without early stop.",
)
@click.option(
    "--out", default="build/demo", show_default=True, type=click.Path(path_type=Path), help="Result directory."
)
@click.option("--resume", is_flag=True, help="Go on with a run that was interrupted: what it finished is kept.")
def main(seeds: int, sweep: str, more: tuple[Arm, ...], out: Path, resume: bool) -> None:  # noqa: FBT001
    """Run a sweep of 24 real trainings on a private Slurm cluster of 2 nodes x 4 GPUs in three ways, and compare.

    The ways: Slurm alone; Slurm with trainings that ask Optuna's ASHA whether to go on; explsched. A seed takes about 8
    minutes. What is finished is written down: after Ctrl-C the same command with --resume goes on there.
    """
    arms = (SLURM_ALONE, ASHA, EXPLSCHED, *more)
    runs = out / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    if not resume:
        for path in runs.glob("*.json"):
            path.unlink()
    rounds: list[report.Round] = []
    try:
        for seed in range(1, seeds + 1):
            outcomes = []
            for number, arm in enumerate(arms, start=(seed - 1) * len(arms) + 1):
                title = f"run {number} of {seeds * len(arms)}: seed {seed}, {arm.name}"
                outcomes.append(_kept(runs, arm, sweep, seed) or _run(arm, sweep, seed, out, title))
                report.keep(outcomes[-1], _path(runs, arm, sweep, seed))
            rounds.append(report.Round(seed, arms, outcomes))
            _write(sweep, rounds, out)
    except KeyboardInterrupt:
        done = len(list(runs.glob("*.json")))
        click.echo(
            f"interrupted; {done} of {seeds * len(arms)} runs are in {runs}: --resume goes on with them", err=True
        )
        sys.exit(130)
    except DevClusterError as error:  # not root, or a TMPDIR that no cluster can be in
        raise click.ClickException(str(error)) from error
    Console().print(_table(sweep, rounds))
    for line in report.summary(rounds):
        click.echo(line)
    click.echo(f"picture: {out / 'report.png'}\nfigures: {out / 'report.json'}")
    click.echo((out / "report.json").read_text(encoding="utf-8"))


def _path(runs: Path, arm: Arm, sweep: str, seed: int) -> Path:
    return runs / f"{sweep}-{seed}-{arm.name.replace(' ', '-').replace(',', '')}.json"


def _kept(runs: Path, arm: Arm, sweep: str, seed: int) -> Outcome | None:
    """What became of an arm in the run that was interrupted."""
    path = _path(runs, arm, sweep, seed)
    if not path.exists():
        return None
    click.echo(f"seed {seed}, {arm.name}: kept from {path}")
    return report.kept(path)


def _write(sweep: str, rounds: Sequence[report.Round], out: Path) -> None:
    figures = {"sweep": sweep, **report.figures(rounds)}
    (out / "report.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report.plot(rounds, out / "report.png")


def _run(arm: Arm, sweep: str, seed: int, out: Path, title: str) -> Outcome:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("best loss {task.fields[best]:.4f}"),
        TimeElapsedColumn(),
    )
    # Short: a munge socket's path may have about 100 characters.
    with tempfile.TemporaryDirectory(prefix="expl") as scratch, Progress(*columns) as bar:
        Path(scratch).chmod(0o755)
        task = bar.add_task(title, total=None, best=float("nan"))

        def tell(ended: int, total: int, best: float) -> None:
            bar.update(task, completed=ended, total=total, best=best)

        outcome = run(Path(scratch), arm, sweep, seed, tell)
        log = Product(Path(scratch) / "explsched").log
        if log.exists():
            (out / "sexplschedd.log").write_bytes(log.read_bytes())
    return outcome


def _table(sweep: str, rounds: Sequence[report.Round]) -> Table:
    table = Table(title=f"The same {sweep} sweep of 24 trainings on 8 GPUs")
    headings = ("seed", "", "GPU-s to best", "s to best", "GPU-s to 90 %", "mean regret", "GPU-s in all")
    for heading in (*headings, "done", "stopped", "lost"):
        table.add_column(heading, justify="right" if heading else "left")
    for one in rounds:
        for arm, outcome in zip(one.arms, one.outcomes, strict=True):
            best = one.to_best(arm)
            seconds = (best.gpu_s, best.elapsed_s, one.to_reduction(arm).gpu_s)
            counts = (outcome.completed, outcome.stopped, outcome.lost)
            table.add_row(
                str(one.seed),
                arm.name,
                *(f"{cell:.0f}" for cell in seconds),
                f"{one.mean_regret(arm):.3f}",
                f"{outcome.curve.gpu_seconds[-1]:.0f}",
                *map(str, counts),
                end_section=arm is one.arms[-1],
            )
    return table


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster is taken down then, too
    main()
