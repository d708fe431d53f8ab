"""What sweeps are compared by, and Syne Tune that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.best_model import rivals
from benchmarks.best_model.__main__ import main
from benchmarks.best_model.drawn import Curve, DrawnSweep, regret_area


def curve(*values: float) -> Curve:
    """A report each 10 s."""
    return Curve(10.0 * np.arange(1, len(values) + 1), np.array(values), 10.0 * len(values), {"lr": values[0]})


SWEEP = DrawnSweep("t", (curve(3.0, 2.0), curve(5.0, 1.0), curve(5.0, 4.0)))
"""60 GPU-seconds in all; regret is 1 at the median first report, 5, and 0 at 1."""


@pytest.mark.parametrize(
    ("reports", "area"),
    [
        ([], 1.0),
        ([(0.0, 1.0)], 0.0),
        ([(30.0, 3.0)], (30 + 30 * 0.5) / 60),
        ([(30.0, 3.0), (45.0, 1.0)], (30 + 15 * 0.5) / 60),
        ([(30.0, 3.0), (45.0, 7.0)], (30 + 30 * 0.5) / 60),  # the best so far counts
        ([(10.0, 100.0), (90.0, 1.0)], 1.0),  # worse than the first, and too late
    ],
)
def test_the_area_is_the_mean_regret_over_the_gpu_seconds_of_the_whole_sweep(
    reports: list[tuple[float, float]], area: float
) -> None:
    assert regret_area(reports, SWEEP) == pytest.approx(area)


def test_a_python_without_syne_tune_is_a_clear_error(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "taskset_a.npz",
        value=np.ones(2),
        cost=np.ones(2),
        length=np.array([2]),
        lower=np.ones((), dtype=np.bool_),
    )
    for python in (sys.executable, tmp_path / "none"):
        done = CliRunner().invoke(main, ["--curves", str(tmp_path), "--rivals", str(python)])
        assert done.exit_code == 1
        assert f"--rivals {python}" in done.output
        assert rivals.INSTALL in done.output


def test_without_syne_tune_its_schedulers_are_unknown_arms(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "taskset_a.npz",
        value=np.ones(2),
        cost=np.ones(2),
        length=np.array([2]),
        lower=np.ones((), dtype=np.bool_),
    )
    done = CliRunner().invoke(main, ["--curves", str(tmp_path), "--arms", "mobster"])
    assert done.exit_code == 2
    assert "mobster (known: slurm" in done.output
