"""Runs a program under several hash seeds: an order of sets that leaks into a result shows as two different outputs."""

from __future__ import annotations

import os
import subprocess
import sys


def outputs(program: str) -> set[str]:
    """What the program prints under each of three hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
