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
from benchmarks.sweep_demo.run import Outcome, run


@click.command()
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 20), help="Repeat with so many seeds.")
@click.option(
    "--out", default="build/demo", show_default=True, type=click.Path(path_type=Path), help="Result directory."
)
def main(seeds: int, out: Path) -> None:
    """Run a sweep of 24 real trainings on a private Slurm cluster of 2 nodes x 4 GPUs, twice, and compare."""
    out.mkdir(parents=True, exist_ok=True)
    pairs = []
    for seed in range(1, seeds + 1):
        stock = _arm(seed, "Slurm alone", out)
        explsched = _arm(seed, "explsched", out)
        pairs.append(report.Pair(seed, stock, explsched))
    figures = report.figures(pairs)
    (out / "report.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report.plot(pairs, out / "report.png")
    Console().print(_table(pairs))
    click.echo(f"picture: {out / 'report.png'}\nfigures: {out / 'report.json'}")
    click.echo(json.dumps(figures))


def _arm(seed: int, label: str, out: Path) -> Outcome:
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
        task = bar.add_task(f"seed {seed}, {label}", total=None, best=float("nan"))

        def tell(ended: int, total: int, best: float) -> None:
            bar.update(task, completed=ended, total=total, best=best)

        outcome = run(Path(scratch), seed, label == "explsched", tell)
        log = Path(scratch) / "sexplschedd.log"
        if log.exists():
            (out / "sexplschedd.log").write_bytes(log.read_bytes())
    return outcome


def _table(pairs: list[report.Pair]) -> Table:
    table = Table(title="The same sweep of 24 trainings on 8 GPUs")
    for heading in ("seed", "", "GPU-s to 90 %", "GPU-s to best model", "GPU-s in all", "completed", "stopped", "lost"):
        table.add_column(heading, justify="right" if heading else "left")
    for pair in pairs:
        for label, outcome in (("Slurm alone", pair.stock), ("explsched", pair.explsched)):
            curve = outcome.curve
            cells = (
                curve.gpu_seconds_to_reduction(pair.target),
                curve.gpu_seconds_to_loss(pair.good_loss),
                curve.gpu_seconds[-1],
            )
            counts = (outcome.completed, outcome.stopped, outcome.lost)
            table.add_row(str(pair.seed), label, *(f"{cell:.0f}" for cell in cells), *map(str, counts))
        table.add_row(
            str(pair.seed), "ratio", f"{pair.ratio:.2f}", f"{pair.ratio_best:.2f}", "", "", "", "", end_section=True
        )
    return table


if __name__ == "__main__":
    main()
