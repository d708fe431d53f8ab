"""The demo's result: figures of both arms over all seeds, a table and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.sweep_demo.run import Outcome


@dataclass(frozen=True, slots=True)
class Pair:
    """Both arms of the experiment for one seed."""

    seed: int
    stock: Outcome
    explsched: Outcome

    @property
    def target(self) -> float:
        """90 % of the final total reduction; of the larger one, should the arms differ."""
        return 0.9 * max(self.stock.curve.total_reduction[-1], self.explsched.curve.total_reduction[-1])

    @property
    def good_loss(self) -> float:
        """A loss within 1 % of the best that either arm found."""
        return 1.01 * min(self.stock.curve.best_loss[-1], self.explsched.curve.best_loss[-1])

    @property
    def ratio(self) -> float:
        """GPU-seconds to the target, Slurm alone / explsched."""
        return self.stock.curve.gpu_seconds_to_reduction(self.target) / self.explsched.curve.gpu_seconds_to_reduction(
            self.target
        )

    @property
    def ratio_best(self) -> float:
        """GPU-seconds to a model within 1 % of the best, Slurm alone / explsched."""
        return self.stock.curve.gpu_seconds_to_loss(self.good_loss) / self.explsched.curve.gpu_seconds_to_loss(
            self.good_loss
        )


def figures(pairs: list[Pair]) -> dict[str, object]:
    """What report.json holds; GPU-seconds and ratios are medians over the seeds unless they say otherwise."""
    return {
        "stock": _arm(pairs, [pair.stock for pair in pairs]),
        "explsched": _arm(pairs, [pair.explsched for pair in pairs]),
        "ratio": median(pair.ratio for pair in pairs),
        "ratio_min": min(pair.ratio for pair in pairs),
        "ratios": [pair.ratio for pair in pairs],
        "ratio_best_model": median(pair.ratio_best for pair in pairs),
        "ratios_best_model": [pair.ratio_best for pair in pairs],
        "seeds": [pair.seed for pair in pairs],
        "jobs_lost": sum(arm.lost for pair in pairs for arm in (pair.stock, pair.explsched)),
    }


def _arm(pairs: list[Pair], outcomes: list[Outcome]) -> dict[str, object]:
    both = list(zip(pairs, outcomes, strict=True))
    return {
        "gpu_seconds_to_90pct": median(o.curve.gpu_seconds_to_reduction(p.target) for p, o in both),
        "gpu_seconds_to_best_model": median(o.curve.gpu_seconds_to_loss(p.good_loss) for p, o in both),
        "gpu_seconds_total": median(o.curve.gpu_seconds[-1] for o in outcomes),
        "total_reduction": median(o.curve.total_reduction[-1] for o in outcomes),
        "best_loss": median(o.curve.best_loss[-1] for o in outcomes),
        "completed": [o.completed for o in outcomes],
        "stopped_early": [o.stopped for o in outcomes],
        "requeues": [o.requeues for o in outcomes],
        "lost": [o.lost for o in outcomes],
    }


def plot(pairs: list[Pair], path: Path) -> None:
    """Total loss reduction and best loss over GPU-seconds, both arms, one line per seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for pair in pairs:
        for outcome, colour, label in (
            (pair.stock, "tab:grey", "Slurm alone"),
            (pair.explsched, "tab:blue", "explsched"),
        ):
            curve = outcome.curve
            shown = label if pair is pairs[0] else None
            left.plot(curve.gpu_seconds, curve.total_reduction, color=colour, label=shown)
            right.plot(curve.gpu_seconds, curve.best_loss, color=colour, label=shown)
    left.axhline(median(pair.target for pair in pairs), color="black", lw=0.8, ls=":", label="90 % of the sweep")
    left.set(xlabel="GPU-seconds", ylabel="total loss reduction of the sweep", title="What the sweep has learned")
    right.set(xlabel="GPU-seconds", ylabel="best validation loss", title="The best model so far", yscale="log")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
