"""What the stretches show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.controller_load import sdiag
from benchmarks.controller_load.arms import Arm, Stretch

_Measure = Callable[[Stretch], float]


def summary(stretches: Sequence[Stretch]) -> dict[str, dict[str, object]]:
    """Each arm's medians over its stretches, and their ratio to those without us; requests added per minute."""
    by_arm = {arm: [s for s in stretches if s.arm is arm] for arm in Arm}
    alone = by_arm[Arm.WITHOUT]
    found: dict[str, dict[str, object]] = {}
    for arm, mine in by_arm.items():
        shown: dict[str, object] = {name: round(median(map(measure, mine)), 2) for name, measure in _MEASURES.items()}
        if arm is not Arm.WITHOUT:
            shown |= {
                "main_mean_ratio": _ratio(_main_ms, mine, alone),
                "main_mean_ratio_by_round": [_ratio(_main_ms, [a], [b]) for a, b in zip(mine, alone, strict=True)],
                "main_cpu_ratio": _ratio(lambda s: s.cpu_mean_ms, mine, alone),
                "backfill_mean_ratio": _ratio(lambda s: s.load.backfill.mean_ms, mine, alone),
                "requests_added_per_minute": _added(mine, alone),
            }
        found[arm] = shown
    return found


def raw(stretches: Sequence[Stretch]) -> list[dict[str, object]]:
    """The stretches one by one, in the order in which they were measured."""
    return [{"arm": s.arm, **{name: round(measure(s), 2) for name, measure in _MEASURES.items()}} for s in stretches]


def _main_ms(stretch: Stretch) -> float:
    return stretch.load.main.mean_ms


_MEASURES: dict[str, _Measure] = {
    "main_mean_ms": _main_ms,
    "main_max_ms": lambda s: s.load.main.max_ms,
    "main_cpu_mean_ms": lambda s: s.cpu_mean_ms,
    "main_mean_depth": lambda s: s.load.main.mean_depth,
    "main_cycles_per_minute": lambda s: 60 * s.load.main.count / s.load.seconds,
    "backfill_mean_ms": lambda s: s.load.backfill.mean_ms,
    "backfill_cycles": lambda s: s.load.backfill.count,
    "backfill_mean_depth": lambda s: s.load.backfill.mean_depth,
    "requests_per_minute": lambda s: 60 * sum(s.load.requests.values()) / s.load.seconds,
    "request_ms_per_minute": lambda s: 60 * s.load.request_ms / s.load.seconds,
    "host_load": lambda s: s.host_load,
}


def _ratio(measure: _Measure, mine: Sequence[Stretch], alone: Sequence[Stretch]) -> float | None:
    base = median(map(measure, alone))
    return round(median(map(measure, mine)) / base, 3) if base else None


def _added(mine: Sequence[Stretch], alone: Sequence[Stretch]) -> dict[str, float]:
    with_us, without = (sdiag.merged([s.load for s in stretches]) for stretches in (mine, alone))
    types = sorted({*with_us.requests, *without.requests})
    added = {name: round(with_us.per_minute(name) - without.per_minute(name), 1) for name in types}
    return {name: count for name, count in added.items() if abs(count) >= 1}
