"""The figures of `benchmarks.kernel_share_real`: percentiles of times, and ratios between arms. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_PERCENTILES = (50, 90, 95, 99)
_RATIOS = {  # name -> (phase of an arm, the arm and phase that it is divided by)
    "server_over_alone": ("both", "time slices", "alone"),
    "server_over_alone_under_mps": ("both", "mps", "alone"),
    "training_over_alone": ("training", "time slices", "training_alone"),
    "training_over_mps": ("training", "mps", "training"),
}


def percentiles(name: str, times_ms: Sequence[float]) -> dict[str, float]:
    """In milliseconds; nothing if there are no times."""
    if not times_ms:
        return {}
    found = np.percentile(times_ms, _PERCENTILES)
    return {f"{name}_p{percent}_ms": round(float(ms), 3) for percent, ms in zip(_PERCENTILES, found, strict=True)}


def with_ratios(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The arms, each with its `ratios` as far as both phases were measured: of times, and of the training's rate."""
    found: dict[str, dict[str, Any]] = {name: {**arm, "ratios": {}} for name, arm in arms.items()}
    for arm in found.values():
        for name, (phase, base, base_phase) in _RATIOS.items():
            if ratios := _ratios(arm.get(phase, {}), arms.get(base, {}).get(base_phase, {})):
                arm["ratios"][name] = ratios
    return found


def _ratios(found: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, float]:
    return {
        key.removesuffix("_ms"): round(found[key] / base[key], 4)
        for key in found
        if (key == "rate" or key.endswith("_ms")) and base.get(key)
    }
