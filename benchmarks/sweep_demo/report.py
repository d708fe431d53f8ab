"""The demo's result: the figures of all arms over all seeds, and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast

from msgspec import convert, to_builtins

from benchmarks.sweep_demo.run import ASHA, EXPLSCHED, SLURM_ALONE, Arm, Moment, Outcome
from explsched.atomic_file import replace_file

COLOURS = ("tab:grey", "tab:orange", "tab:blue", "tab:cyan")
_REDUCTION = 0.9
_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Round:
    """The same sweep in every arm, with one seed; `outcomes` are those of `arms`, in their order."""

    seed: int
    arms: Sequence[Arm]
    outcomes: Sequence[Outcome]

    def of(self, arm: Arm) -> Outcome:
        """What the arm came to."""
        return self.outcomes[self.arms.index(arm)]

    @property
    def best_loss(self) -> float:
        """The best that any arm found."""
        return min(outcome.curve.best_loss[-1] for outcome in self.outcomes)

    @property
    def most_reduction(self) -> float:
        """The largest final total reduction."""
        return max(outcome.curve.total_reduction[-1] for outcome in self.outcomes)

    @property
    def first_loss(self) -> float:
        """The first loss that Slurm alone reported: where regret is 1."""
        return next(loss for loss in self.of(SLURM_ALONE).curve.best_loss if loss < float("inf"))

    def to_best(self, arm: Arm) -> Moment:
        """When the arm had a model within 1 % of the best that any arm found."""
        return self.of(arm).curve.to_loss((1 + _TOLERANCE) * self.best_loss)

    def to_reduction(self, arm: Arm) -> Moment:
        """When the arm had 90 % of the largest final total reduction."""
        return self.of(arm).curve.to_reduction(_REDUCTION * self.most_reduction)

    def mean_regret(self, arm: Arm) -> float:
        """Mean normalised regret over the GPU-seconds that Slurm alone needs for the whole sweep."""
        whole_gpu_s = self.of(SLURM_ALONE).curve.gpu_seconds[-1]
        return self.of(arm).curve.mean_regret(self.best_loss, self.first_loss, whole_gpu_s)


def figures(rounds: Sequence[Round]) -> dict[str, object]:
    """What report.json holds; ratios are another arm's figure divided by explsched's, one for each seed.

    None stands for what was never reached: JSON has no infinity.
    """
    return {
        "seeds": [seed.seed for seed in rounds],
        "arms": [_arm(rounds, arm) for arm in rounds[0].arms],
        "slurm_alone_over_explsched": _ratios(rounds, SLURM_ALONE),
        "asha_over_explsched": _ratios(rounds, ASHA),
        "jobs_lost": sum(outcome.lost for seed in rounds for outcome in seed.outcomes),
    }


def summary(rounds: Sequence[Round]) -> Iterator[str]:
    """The ratios that tell who is ahead, a line each: above 1 explsched needs less."""
    for name, other in (("Slurm alone", SLURM_ALONE), ("ASHA", ASHA)):
        for what, title in (("gpu_seconds_to_best", "GPU-seconds"), ("time_to_best", "time")):
            found = cast("Mapping[str, object]", _ratios(rounds, other)[what])
            each = ", ".join(map(_shown, cast("Sequence[float | None]", found["each"])))
            least, middle = _shown(found["min"]), _shown(found["median"])
            yield f"{title} to the best model, {name} / explsched: min {least}, median {middle} (each: {each})"


def _shown(value: object) -> str:
    """None stands for what one of the two never reached."""
    return f"{value:.2f}" if isinstance(value, float) else "not reached"


def keep(outcome: Outcome, path: Path) -> None:
    """Write down what a run came to."""
    replace_file(path, json.dumps(to_builtins(outcome)))


def kept(path: Path) -> Outcome:
    """A run that was written down."""
    return convert(json.loads(path.read_text()), Outcome)


def _ratios(rounds: Sequence[Round], other: Arm) -> dict[str, object]:
    def ratios(values: Sequence[tuple[float, float]]) -> dict[str, object]:
        found = [theirs / ours for theirs, ours in values]
        return {"median": _finite(median(found)), "min": _finite(min(found)), "each": [_finite(one) for one in found]}

    return {
        "gpu_seconds_to_best": ratios([(s.to_best(other).gpu_s, s.to_best(EXPLSCHED).gpu_s) for s in rounds]),
        "time_to_best": ratios([(s.to_best(other).elapsed_s, s.to_best(EXPLSCHED).elapsed_s) for s in rounds]),
        "gpu_seconds_to_90pct": ratios(
            [(s.to_reduction(other).gpu_s, s.to_reduction(EXPLSCHED).gpu_s) for s in rounds]
        ),
        "mean_regret": ratios([(s.mean_regret(other), s.mean_regret(EXPLSCHED)) for s in rounds]),
    }


def _arm(rounds: Sequence[Round], arm: Arm) -> dict[str, object]:
    outcomes = [seed.of(arm) for seed in rounds]
    return {
        "arm": arm.name,
        "gpu_seconds_to_best": [_finite(seed.to_best(arm).gpu_s) for seed in rounds],
        "time_to_best_s": [_finite(seed.to_best(arm).elapsed_s) for seed in rounds],
        "gpu_seconds_to_90pct": [_finite(seed.to_reduction(arm).gpu_s) for seed in rounds],
        "mean_regret": [seed.mean_regret(arm) for seed in rounds],
        "gpu_seconds_total": [o.curve.gpu_seconds[-1] for o in outcomes],
        "best_loss": [o.curve.best_loss[-1] for o in outcomes],
        "completed": [o.completed for o in outcomes],
        "stopped_early": [o.stopped for o in outcomes],
        "requeues": [o.requeues for o in outcomes],
        "lost": [o.lost for o in outcomes],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def plot(rounds: Sequence[Round], path: Path) -> None:
    """Regret of the best model, and the total loss reduction, over GPU-seconds; one line per arm and seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for seed in rounds:
        for arm, outcome, colour in zip(seed.arms, seed.outcomes, COLOURS, strict=False):
            curve = outcome.curve
            label = arm.name if seed is rounds[0] else None
            regret = [(loss - seed.best_loss) / (seed.first_loss - seed.best_loss) for loss in curve.best_loss]
            left.plot(curve.gpu_seconds, regret, color=colour, label=label, drawstyle="steps-post")
            right.plot(curve.gpu_seconds, curve.total_reduction, color=colour, label=label)
    left.set(xlabel="GPU-seconds", ylabel="normalised regret", title="How far the best model is from the sweep's best")
    left.set(yscale="symlog", ylim=(0, 1))
    left.set_yscale("symlog", linthresh=1e-3)
    right.axhline(median(_REDUCTION * s.most_reduction for s in rounds), color="black", lw=0.8, ls=":", label="90 %")
    right.set(xlabel="GPU-seconds", ylabel="total loss reduction", title="What all trainings have learned")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
