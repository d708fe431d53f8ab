"""What sweeps are compared by, and Syne Tune that is not there."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks.best_model import rivals
from benchmarks.best_model.__main__ import ARMS, main
from benchmarks.best_model.drawn import PLANNED, Curve, DrawnSweep, load, regret_area


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


def save(path: Path, *trainings: Sequence[float]) -> None:
    """A file of learning curves; those that are not counted have a report each minute."""
    np.savez(
        path,
        value=np.concatenate(trainings),
        cost=np.concatenate([60.0 * np.arange(1, len(values) + 1) for values in trainings]),
        length=np.array([len(values) for values in trainings]),
        lower=np.ones((), dtype=np.bool_),
    )


FALLING = (0.5, 0.3, 0.2)


def measured(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """What the command prints, and what it tells on stderr."""
    done = CliRunner().invoke(main, ["--curves", str(folder), "--seeds", "1", "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), done.stderr


def test_a_best_of_zero_is_reached(tmp_path: Path) -> None:
    save(tmp_path / "algoperf_a.npz", FALLING, (0.4, 0.1, 0.0))
    found, _ = measured(tmp_path)
    assert {name: arm["reached"] for name, arm in found["algoperf:1"].items()} == dict.fromkeys(ARMS, 1.0)


def test_a_training_that_never_reported_is_left_out_and_told(tmp_path: Path) -> None:
    save(tmp_path / "algoperf_a.npz", FALLING, (), (0.4, 0.1, 0.05))
    save(tmp_path / "algoperf_b.npz", ())
    found, told = measured(tmp_path, "--setting", "algoperf:1", "--arms", "oracle")
    assert found["algoperf:1"]["oracle"]["reached"] == 1.0
    assert found["tasks"] == ["algoperf_a"]
    why = "trainings left out because they never reported: 1"
    assert told == f"algoperf_a: {why}\nalgoperf_b: {why}\n"


def test_what_is_not_a_number_is_not_the_best(tmp_path: Path) -> None:
    save(tmp_path / "algoperf_a.npz", (math.nan, math.nan), (0.4, 0.1, 0.05, 0.04))
    found, _ = measured(tmp_path, "--arms", "oracle")
    assert found["algoperf:1"]["oracle"]["hours_to_best"] == round(240 / 3600, 3)
    assert math.isfinite(found["algoperf:1"]["slurm"]["regret_area"])


@pytest.mark.parametrize(("planned", "planned_s"), [("own", [180.0, 60.0]), ("longest", [180.0, 180.0])])
def test_trainings_are_planned_until_their_own_ends_or_as_the_longest(
    tmp_path: Path, planned: str, planned_s: list[float]
) -> None:
    save(tmp_path / "algoperf_a.npz", FALLING, (0.9,))
    (task,) = load(tmp_path)
    assert [curve.planned_s for curve in PLANNED[planned](task).curves] == planned_s
    assert [curve.run_s for curve in PLANNED[planned](task).curves] == [180.0, 60.0]
    found, _ = measured(tmp_path, "--planned", planned, "--arms", "explsched")
    assert found["planned"] == planned


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--setting", "taskset"), "found 'taskset', accepted: family:sweeps, with 1 to 8 sweeps"),
        (("--setting", "taskset:0"), "found 'taskset:0'"),
        (("--setting", "taskset:1", "--setting", "taskset:3"), "taskset:3 has 1 tasks; found: algoperf_a, taskset_a"),
        (("--setting", "lcbench:1"), "lcbench:1 has 0 tasks; found: algoperf_a, taskset_a"),
        (("--tasks", "choosing"), "algoperf:4 has 0 tasks; found: no tasks"),
    ],
)
def test_a_setting_without_enough_tasks_is_an_error(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    for family in ("taskset", "algoperf"):
        save(tmp_path / f"{family}_a.npz", FALLING)
    done = CliRunner().invoke(main, ["--curves", str(tmp_path), "--json", *options])
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())
    assert not done.stdout


def test_usual_settings_without_enough_tasks_are_left_out_and_told(tmp_path: Path) -> None:
    save(tmp_path / "taskset_a.npz", FALLING)
    found, told = measured(tmp_path, "--arms", "slurm")
    assert [name for name in found if ":" in name] == ["taskset:1"]
    assert told.splitlines() == [
        f"left out: {s} tasks" for s in ("taskset:3 has 1", "algoperf:1 has 0", "algoperf:4 has 0")
    ]


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--curves", str(tmp_path)])
    assert done.exit_code == 2
    assert "algoperf:4 has 0 tasks; found: no tasks" in " ".join(done.stderr.split())


def with_rival(folder: Path, program: str, arm: str) -> Result:
    """The command with two families of curves without hyper-parameters and a program in Syne Tune's place."""
    for family in ("taskset", "algoperf"):
        save(folder / f"{family}_a.npz", FALLING, (0.9,))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit\n{program}\n')
    python.chmod(0o755)
    options = ["--setting", "taskset:1", "--setting", "algoperf:1", "--arms", f"explsched,{arm}", "--json"]
    return CliRunner().invoke(main, ["--curves", str(folder), "--seeds", "1", "--rivals", str(python), *options])


def test_what_was_measured_before_a_rival_failed_is_told(tmp_path: Path) -> None:
    fails_later = f"""mkdir {tmp_path}/called || exit 1
        echo '{{"reports": [[60, 120, 0.2]], "gpu_s": 120, "end_s": 60}}'"""
    done = with_rival(tmp_path, fails_later, "asha-promotion")
    assert done.exit_code == 1
    assert "asha-promotion on algoperf_a: " in done.stderr
    found = json.loads(done.stdout)
    assert found["taskset:1"]["asha-promotion"]["reached"] == 1.0
    assert "algoperf:1" not in found


def test_rivals_that_need_hyper_parameters_are_an_error_before_anything_is_measured(tmp_path: Path) -> None:
    done = with_rival(tmp_path, "exit 1", "mobster")
    assert done.exit_code == 1
    assert "mobster on taskset_a: it models hyper-parameters" in done.stderr
    assert not done.stdout


def test_a_python_without_syne_tune_is_a_clear_error(tmp_path: Path) -> None:
    save(tmp_path / "taskset_a.npz", FALLING)
    for python in (sys.executable, tmp_path / "none"):
        done = CliRunner().invoke(main, ["--curves", str(tmp_path), "--rivals", str(python)])
        assert done.exit_code == 1
        assert f"--rivals {python}" in done.output
        assert rivals.INSTALL in done.output


@pytest.fixture
def told(tmp_path: Path) -> Callable[[str, DrawnSweep], Any]:
    """What a scheduler of Syne Tune would be told of a sweep, written down by the program that is run in its place."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat > {tmp_path}/told\necho \'{{"reports": [], "gpu_s": 1, "end_s": 1}}\'\n')
    python.chmod(0o755)

    def run(scheduler: str, sweep: DrawnSweep) -> Any:
        rivals.run(python, scheduler, sweep, 1)
        return json.loads((tmp_path / "told").read_text())["params"]

    return run


@pytest.mark.parametrize("scheduler", rivals.NAMES)
def test_syne_tune_is_told_hyper_parameters_that_tell_trainings_apart(
    told: Callable[[str, DrawnSweep], Any], scheduler: str
) -> None:
    apart = DrawnSweep("t", (curve(3.0, 2.0), curve(5.0, 1.0)))
    assert told(scheduler, apart) == [{"lr": 3.0}, {"lr": 5.0}]


@pytest.mark.parametrize("scheduler", rivals.NAMES)
@pytest.mark.parametrize("params", [{}, {"lr": 0.1}, {"lr": math.nan}])
def test_without_them_asha_is_told_numbers_and_those_that_model_them_do_not_run(
    told: Callable[[str, DrawnSweep], Any], scheduler: str, params: dict[str, float]
) -> None:
    alike = DrawnSweep("t", tuple(replace(one, params=params) for one in SWEEP.curves))
    if scheduler in rivals.BY_MODEL:
        with pytest.raises(rivals.RivalsError, match=f"{scheduler} on t: it models hyper-parameters"):
            told(scheduler, alike)
    else:
        assert told(scheduler, alike) == [{"training": 0}, {"training": 1}, {"training": 2}]


def test_without_syne_tune_its_schedulers_are_unknown_arms(tmp_path: Path) -> None:
    save(tmp_path / "taskset_a.npz", FALLING)
    done = CliRunner().invoke(main, ["--curves", str(tmp_path), "--arms", "mobster"])
    assert done.exit_code == 2
    assert "mobster (known: slurm" in done.output
