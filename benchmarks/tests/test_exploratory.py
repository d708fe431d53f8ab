"""The figures of the exploratory benchmark, on a trace whose every number can be worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.exploratory.__main__ import main, measure
from benchmarks.exploratory.recorded import LearningCurves
from benchmarks.tests.curve_builders import falling, recorded
from sched_policy import catalog
from sched_policy.model import Exploration
from simulation.traces.learning import Learning
from simulation.traces.trace import ClusterShape, Trace, TraceJob

FIFO = catalog.build("fifo")
TELLS = Exploration(sweep="s", checkpoint_signal="USR1", may_stop=True)
# Six epochs of 600 s; all that can be learned is learned in the first four.
LEARNING = Learning.of_epochs(np.array([1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]), 6, 600.0, 0.0, TELLS)


def job(job_id: int, submit_s: float, learning: Learning = LEARNING, gpus: int = 1) -> TraceJob:
    return TraceJob(job_id, submit_s, gpus, 3600.0, time_limit_s=7200.0, learning=learning)


def test_utility_is_reduction_per_gpu_hour_of_all_jobs() -> None:
    one_by_one = Trace.of([job(1, 30.0, gpus=2), job(2, 30.0, gpus=2)])
    figures = measure(FIFO, one_by_one, ClusterShape(1, 2))
    assert figures.utility == pytest.approx(2 / 4.0)
    assert figures.reached == pytest.approx(1.0)
    assert (figures.stopped, figures.preemptions) == (0.0, 0.0)


def test_the_early_figures_are_those_when_the_last_job_arrives() -> None:
    overlapping = Trace.of([job(1, 30.0), job(2, 1830.0)])
    figures = measure(FIFO, overlapping, ClusterShape(1, 1))
    assert figures.early_reached == pytest.approx(0.75 / 2)
    assert figures.early_utility == pytest.approx(0.75 / 0.5)


def test_what_an_owner_gives_up_could_not_be_reached() -> None:
    given_up = replace(LEARNING, abandoned_at_s=1200.0)
    figures = measure(FIFO, Trace.of([job(1, 30.0, given_up)]), ClusterShape(1, 1))
    assert figures.reached == pytest.approx(1.0)
    assert figures.utility == pytest.approx(0.5 / (1 / 3))


def test_the_best_of_each_sweep_counts_against_itself_left_alone() -> None:
    crawling = replace(LEARNING, losses=np.array([1.0] * 6 + [0.75]))
    cut_short = replace(job(2, 60.0), time_limit_s=1200.0)
    together = measure(FIFO, Trace.of([job(1, 30.0, crawling), cut_short]), ClusterShape(1, 2))
    assert together.reached == pytest.approx((0.25 + 0.5) / 1.25)
    assert together.best_reached == pytest.approx(0.5)


def test_the_command_prints_json_last(tmp_path: Path) -> None:
    curves = [recorded(falling(0.1 * i, 0.05 * (i + 1)), seed=i) for i in range(5)]
    LearningCurves(curves).save(tmp_path / "c.npz")
    options = ["--seeds", "2", "--jobs", "20", "--policies", "explsched,fifo", "--curves", str(tmp_path / "c.npz")]
    done = CliRunner().invoke(main, options, catch_exceptions=False)
    assert done.exit_code == 0
    report = json.loads(done.output.splitlines()[-1])
    ours, fifo = (report["policies"][name]["utility"] for name in ("explsched", "fifo"))
    assert report["against_best"] == report["against_mean"] == pytest.approx(ours / fifo - 1, abs=2e-3)
    assert report["curves"] == 5
    assert report["options"]["stop_threshold"] == catalog.PolicyOptions().stop_threshold
