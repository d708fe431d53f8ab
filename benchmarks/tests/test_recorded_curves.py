"""The recorded curves that benchmarks draw from."""

import numpy as np

from benchmarks.exploratory.__main__ import CLUSTER, CURVES
from benchmarks.exploratory.recorded import LearningCurves
from benchmarks.exploratory.workload import Workload, abandoned_share

RECORDED = LearningCurves.load(CURVES)


def test_there_are_hundreds_of_different_trainings_in_a_small_file() -> None:
    assert len({curve.training for curve in RECORDED}) == len(RECORDED) >= 300
    assert len({curve.training.data for curve in RECORDED}) >= 5
    assert len({curve.training.sweep for curve in RECORDED}) >= 8
    assert CURVES.stat().st_size < 1 << 20


def test_every_curve_is_as_long_as_its_training_unless_it_diverged() -> None:
    for curve in RECORDED:
        assert np.isfinite(curve.losses).all()
        assert 40 <= curve.training.epochs <= 200
        assert 1 <= len(curve.losses) <= curve.training.epochs + 1
    assert 0 < sum(curve.diverged for curve in RECORDED) < 0.1 * len(RECORDED)


def test_some_learn_and_some_do_not() -> None:
    left = np.array([curve.losses.min() / curve.losses[0] for curve in RECORDED])
    assert (left < 0.2).sum() > 50
    assert (left > 0.9).sum() > 50


def test_more_than_three_in_ten_jobs_are_abandoned() -> None:
    for seed in range(1, 6):
        assert 0.3 < abandoned_share(Workload(jobs=240, seed=seed).generate(RECORDED, CLUSTER)) < 0.7
