"""The gate on the hostile device of `tests/kernel/hostile`, in virtual time: no figure depends on the machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

_WARM_UP_S = 60.0  # of the arms that start without profiles
_ARMS = ("known_priority", "learnt_priority", "known", "learnt")
"""With the client priority that `sxrun --mps` asks MPS for, and without; profiles known, and learnt from nothing."""


def run(build: Path, seconds: float) -> dict[str, Any]:
    """The rows of all mixes, and of each figure the worst. `seconds` of virtual time count in each run."""
    program = build / "tests/kernel/hostile/hostile_share"
    command: list[str | Path] = [program, str(seconds), str(_WARM_UP_S)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {**worst(found["mixes"]), "quota": found["quota"], "mixes": found["mixes"]}


def worst(mixes: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each arm, over all mixes."""
    return {
        arm: {
            "hp_p99_ratio": max(mix[arm]["hp_p99_ratio"] for mix in mixes),
            "hp_p50_ratio": max(mix[arm]["hp_p50_ratio"] for mix in mixes),
            "be_retained": min(mix[arm]["be_retained"] for mix in mixes),
            "total": min(mix[arm]["total"] for mix in mixes),
            "let_in_above_caps": max(mix[arm]["let_in_above_caps"] for mix in mixes),
            "let_in_beside_high": max(mix[arm]["let_in_beside_high"] for mix in mixes),
        }
        for arm in _ARMS
    }
