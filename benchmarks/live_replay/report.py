"""What the benchmark prints: one run's figures, and the medians over several. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.live_replay import figures
from benchmarks.live_replay.figures import Figures

_RATIOS = ("jct_ratio", "makespan_ratio")
_ERRORS = ("sim_error_jct", "sim_error_makespan")


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm, live and simulated; the simulator was told what a launch costs and when the schedulers looked.

    `mean_look_s` is the mean time between the looks of each.
    """

    live: Figures
    simulated: Figures
    launch_s: float
    mean_look_s: Mapping[str, float | None]
    lost: int
    load_before_after: tuple[float, float]

    @property
    def sim_error_jct(self) -> float:
        """Of the simulated mean JCT, relative and signed."""
        return figures.error(self.simulated.avg_jct_s, self.live.avg_jct_s)

    @property
    def sim_error_makespan(self) -> float:
        """Of the simulated makespan, relative and signed."""
        return figures.error(self.simulated.makespan_s, self.live.makespan_s)


def run(stock: Arm, ours: Arm) -> dict[str, object]:
    """One run: ratios are Slurm alone / explsched, errors the larger of the two arms, with their sign."""
    arms = {"slurm": stock, "explsched": ours}
    return {
        "jct_ratio": stock.live.avg_jct_s / ours.live.avg_jct_s,
        "makespan_ratio": stock.live.makespan_s / ours.live.makespan_s,
        "sim_error_jct": max(stock.sim_error_jct, ours.sim_error_jct, key=abs),
        "sim_error_makespan": max(stock.sim_error_makespan, ours.sim_error_makespan, key=abs),
        "jobs_lost": stock.lost + ours.lost,
        "arms": {
            name: {**asdict(arm), "sim_error_jct": arm.sim_error_jct, "sim_error_makespan": arm.sim_error_makespan}
            for name, arm in arms.items()
        },
    }


def summary(setting: Mapping[str, object], runs: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """All runs under one setting: medians of the ratios (and the least), worst of the errors, sum of the lost jobs."""
    found: dict[str, object] = dict(setting)
    for name in _RATIOS:
        values = [_number(each[name]) for each in runs]
        found |= {name: median(values), f"{name}_least": min(values)}
    for name in _ERRORS:
        found[name] = max((_number(each[name]) for each in runs), key=abs)
    found["jobs_lost"] = sum(_number(each["jobs_lost"]) for each in runs)
    return {**found, "runs": list(runs)}


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"a run's figure is {value!r}, not a number")
    return value
