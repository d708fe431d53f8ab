"""`python -m benchmarks.sweep_demo`: the same sweep by Slurm alone and with explsched, side by side."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.sweep_demo import report
from benchmarks.sweep_demo.run import EXPLSCHED, SLURM_ALONE, WITHOUT_STOP, Arm, Outcome, run
from benchmarks.sweep_demo.sweep import LEARNING_RATES
from slurm_plugin.devcluster import Product


@click.command()
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 20), help="Repeat with so many seeds.")
@click.option(
    "--sweep", default="coarse", show_default=True, type=click.Choice(list(LEARNING_RATES)), help="Which sweep to run."
)
@click.option(
    "--no-stop-arm",
    "third",
    flag_value=WITHOUT_STOP,
    default=None,
    type=click.UNPROCESSED,
    help="Run a third arm: explsched without early stop.",
)
@click.option(
    "--out", default="build/demo", show_default=True, type=click.Path(path_type=Path), help="Result directory."
)
def main(seeds: int, sweep: str, third: Arm | None, out: Path) -> None:
    """Run a sweep of 24 real trainings on a private Slurm cluster of 2 nodes x 4 GPUs, twice, and compare."""
    out.mkdir(parents=True, exist_ok=True)
    advised = (EXPLSCHED, third) if third else (EXPLSCHED,)
    pairs: dict[Arm, list[report.Pair]] = {arm: [] for arm in advised}
    for seed in range(1, seeds + 1):
        stock = _run(SLURM_ALONE, sweep, seed, out)
        for arm in advised:
            pairs[arm].append(report.Pair(seed, stock, _run(arm, sweep, seed, out)))
    figures = {"sweep": sweep, **report.figures(pairs[EXPLSCHED])}
    if third:
        figures["without_stop"] = report.figures(pairs[third])
    (out / "report.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report.plot(pairs[EXPLSCHED], out / "report.png")
    for arm in advised:
        Console().print(_table(arm, sweep, pairs[arm]))
    click.echo(f"picture: {out / 'report.png'}\nfigures: {out / 'report.json'}")
    click.echo(json.dumps(figures))


def _run(arm: Arm, sweep: str, seed: int, out: Path) -> Outcome:
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
        task = bar.add_task(f"seed {seed}, {arm.name}", total=None, best=float("nan"))

        def tell(ended: int, total: int, best: float) -> None:
            bar.update(task, completed=ended, total=total, best=best)

        outcome = run(Path(scratch), arm, sweep, seed, tell)
        log = Product(Path(scratch) / "explsched").log
        if log.exists():
            (out / "sexplschedd.log").write_bytes(log.read_bytes())
    return outcome


def _table(arm: Arm, sweep: str, pairs: list[report.Pair]) -> Table:
    table = Table(title=f"The same {sweep} sweep of 24 trainings on 8 GPUs")
    for heading in ("seed", "", "GPU-s to 90 %", "GPU-s to best model", "GPU-s in all", "completed", "stopped", "lost"):
        table.add_column(heading, justify="right" if heading else "left")
    for pair in pairs:
        for name, outcome in ((SLURM_ALONE.name, pair.stock), (arm.name, pair.explsched)):
            curve = outcome.curve
            cells = (
                curve.gpu_seconds_to_reduction(pair.target),
                curve.gpu_seconds_to_loss(pair.good_loss),
                curve.gpu_seconds[-1],
            )
            counts = (outcome.completed, outcome.stopped, outcome.lost)
            table.add_row(str(pair.seed), name, *(f"{cell:.0f}" for cell in cells), *map(str, counts))
        table.add_row(
            str(pair.seed), "ratio", f"{pair.ratio:.2f}", f"{pair.ratio_best:.2f}", "", "", "", "", end_section=True
        )
    return table


if __name__ == "__main__":
    main()
