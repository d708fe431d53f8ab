"""From the reports of the arms of `benchmarks.kernel_share_real` to its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

SHARED = ("time-slicing", "mps", "explsched")

Report = Mapping[str, Mapping[str, Any]]  # role -> what its worker reports
Round = Mapping[str, Report]  # arm -> reports


def arm_figures(reports: Report) -> dict[str, float]:
    """Latencies of the requests in ms, and steps of the training per second, as far as the arm has them."""
    found: dict[str, float] = {}
    served = reports.get("inference", {})
    if "latencies_ms" in served:
        p50, p99 = np.percentile(served["latencies_ms"], [50, 99])
        found |= {
            "hp_p50_ms": round(float(p50), 3),
            "hp_p99_ms": round(float(p99), 3),
            "hp_requests_per_s": round(served["requests"] / served["wall_s"], 3),
        }
    if "training" in reports:
        found["be_steps_per_s"] = round(reports["training"]["rate"], 4)
    return found


def summary(rounds: Sequence[Round], load: float) -> dict[str, Any]:
    """Medians over the rounds of ratios taken within each round, since clocks and temperatures drift between rounds.

    `load` is the share of its own closed-loop capacity at which requests arrive. Total throughput is the load that was
    served plus the training's share of its speed alone; taking turns without any loss would give 1.
    """
    found: dict[str, Any] = {}
    for arm in SHARED:
        present = [
            (round_, arm_figures(round_[arm]))
            for round_ in rounds
            if arm in round_ and "inference alone" in round_ and "training alone" in round_
        ]
        if not present:
            continue
        p99, p50, retained, total = [], [], [], []
        for round_, shared in present:
            hp, be = arm_figures(round_["inference alone"]), arm_figures(round_["training alone"])
            kept = shared["be_steps_per_s"] / be["be_steps_per_s"]
            p99.append(shared["hp_p99_ms"] / hp["hp_p99_ms"])
            p50.append(shared["hp_p50_ms"] / hp["hp_p50_ms"])
            retained.append(kept)
            total.append(load * min(1.0, shared["hp_requests_per_s"] / hp["hp_requests_per_s"]) + kept)
        found[arm] = {
            "hp_p99_ratio": _rounded(p99),
            "hp_p50_ratio": _rounded(p50),
            "be_retained": _rounded(retained),
            "total_throughput": _rounded(total),
        }
    overheads = {
        "step_overhead_managed": ("training managed", "training alone"),
        "step_overhead_preloaded": ("training preloaded", "training alone"),
    }
    for name, (arm, base) in overheads.items():
        ratios = [
            arm_figures(round_[base])["be_steps_per_s"] / arm_figures(round_[arm])["be_steps_per_s"] - 1
            for round_ in rounds
            if arm in round_ and base in round_
        ]
        if ratios:
            found[name] = _rounded(ratios)
    return found


def _rounded(values: Sequence[float]) -> float:
    return round(median(values), 4)
