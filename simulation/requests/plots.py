"""A picture of rules: SLO misses over replica-seconds, one line per rule.

matplotlib is an optional dependency and slow to import; it is loaded when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulation.requests.replay import RequestMetrics
from simulation.results.plots import check

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, safe for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP*"


@dataclass(frozen=True, slots=True)
class Point:
    """A run under a rule. `target` is the swept value, None for the rule's default."""

    target: float | None
    metrics: RequestMetrics


Curves = Mapping[str, Sequence[Point]]
"""Rule -> its runs."""


def draw(panels: Mapping[str, Curves], path: Path) -> None:
    """Write a picture with a panel per title. Raises `PlotError`, or `OSError` if the file cannot be written."""
    check(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.0, 4.6 * len(panels)), 4.2), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _panel(axes, curves)
        axes.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=120)


def _panel(axes: Axes, curves: Curves) -> None:
    for at, (rule, points) in enumerate(curves.items()):
        colour, marker = _COLOURS[at % len(_COLOURS)], _MARKERS[at % len(_MARKERS)]
        swept = sorted((point for point in points if point.target is not None), key=lambda point: point.target or 0.0)
        axes.plot(*_coordinates(swept), color=colour, marker=marker, ms=3, lw=1, label=rule)
        default = [point for point in points if point.target is None]
        axes.plot(*_coordinates(default), color=colour, marker=marker, ms=9, ls="", mec="black")
    # Runs without a miss must stay visible: linear below 0.01 %.
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_ylim(-0.002, 101)
    axes.set(xlabel="replica-seconds (1000)", ylabel="requests over the SLO (%)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", title="large: defaults", title_fontsize="x-small")


def _coordinates(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return (
        [point.metrics.replica_seconds / 1000 for point in points],
        [100 * point.metrics.slo_miss_share for point in points],
    )
