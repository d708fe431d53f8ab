"""Records the learning curves of real trainings, one CPU thread, into one file.

Goes on where it was interrupted: trainings that the file already holds are not repeated. Prints JSON last.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import numpy as np
import torch
from rich.progress import track

from benchmarks.curves import models
from benchmarks.curves.search import trainings
from benchmarks.curves.tasks import Task, task
from benchmarks.exploratory.recorded import LearningCurves, RecordedCurve, Training

OUT = Path(__file__).with_name("curves.npz")


@click.command()
@click.option("--out", default=OUT, show_default=True, type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--configurations", default=18, show_default=True, type=click.IntRange(1, 1000), help="Per data set and model."
)
def main(out: Path, configurations: int) -> None:
    """Train every configuration with every seed and keep its validation loss after each epoch."""
    curves = record(trainings(configurations), out)
    diverged = sum(curve.diverged for curve in curves)
    print(json.dumps({"curves": len(curves), "diverged": diverged, "bytes": out.stat().st_size}))


def record(wanted: Sequence[Training], out: Path) -> LearningCurves:
    """Train what `out` does not hold yet, and write it after each training. Returns all that `out` holds then."""
    torch.set_num_threads(1)
    kept = list(LearningCurves.load(out)) if out.exists() else []
    done = {curve.training for curve in kept}
    missing = [training for training in wanted if training not in done]
    for training in track(missing, description=f"{len(missing)} trainings"):
        kept.append(RecordedCurve(training, np.array(list(losses(training)))))
        LearningCurves(kept).save(out)
    return LearningCurves(kept)


def losses(training: Training) -> Iterable[float]:
    """Validation loss before the first epoch and after each one; ends early once it is no finite float32."""
    torch.manual_seed(training.seed)
    work = task(training.data, training.model)
    model = models.build(
        training.model, work.train_x.shape[1], work.outputs, training.width, training.depth, training.dropout
    )
    optimiser = models.OPTIMISERS[training.optimiser](
        model.parameters(), lr=training.lr, weight_decay=training.weight_decay
    )
    yield _validate(model, work)
    for _ in range(training.epochs):
        model.train()
        for rows in torch.randperm(len(work.train_x)).split(training.batch):
            optimiser.zero_grad()
            work.loss(model(work.train_x[rows]), work.train_y[rows]).backward()
            optimiser.step()
        loss = _validate(model, work)
        if not math.isfinite(loss):
            return
        yield loss


def _validate(model: torch.nn.Module, work: Task) -> float:
    model.eval()
    with torch.no_grad():
        return float(work.loss(model(work.valid_x), work.valid_y))


if __name__ == "__main__":
    main()
