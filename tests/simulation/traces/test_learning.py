import numpy as np
import pytest

from sched_policy.model import Exploration, ProgressPoint
from simulation.traces.learning import Learning

LOSSES = np.array([4.0, 2.0, 3.0, 1.0])


def learning(losses: np.ndarray = LOSSES, best_of_sweep: float = 0.0) -> Learning:
    return Learning.of_epochs(losses, 10, 60.0, best_of_sweep, Exploration(sweep="s"))


def test_a_report_comes_with_the_end_of_its_epoch() -> None:
    job = learning()
    assert job.points_until(0.0, 2) == (ProgressPoint(0, 0.0, 4.0),)
    assert job.points_until(59.9, 2) == (ProgressPoint(0, 0.0, 4.0),)
    assert job.points_until(60.0, 2)[1:] == (ProgressPoint(1, 120.0, 2.0),)


def test_reports_may_come_at_times_and_steps_of_their_own() -> None:
    job = Learning(LOSSES, np.array([5.0, 7.0, 7.0, 90.0]), np.array([1, 10, 20, 30]), 40, 1.0, Exploration(sweep="s"))
    assert job.points_until(4.9, 2) == ()
    assert job.points_until(89.9, 2) == tuple(map(ProgressPoint, (1, 10, 20), (10.0, 14.0, 14.0), (4.0, 2.0, 3.0)))
    assert [job.gain(at_s) for at_s in (4.9, 5.0, 7.0, 90.0)] == pytest.approx([0.0, 0.0, 2 / 3, 1.0])


def test_a_loss_that_is_not_a_number_is_no_gain() -> None:
    assert learning(np.array([4.0, np.nan, 2.0])).gain(120.0) == 0.5
    assert learning(np.array([np.nan, 2.0])).gain(120.0) == 0.0


def test_rounding_does_not_put_a_report_off() -> None:
    third = Learning.of_epochs(LOSSES, 10, 0.1, 0.0, Exploration())
    assert len(third.points_until(0.1 + 0.1 + 0.1 - 1e-12, 1)) == 4


def test_reports_end_where_training_diverged() -> None:
    assert [point.step for point in learning().points_until(600.0, 1)] == [0, 1, 2, 3]


def test_the_same_tuple_until_the_next_epoch() -> None:
    job = learning()
    first = job.points_until(61.0, 1)
    assert job.points_until(119.0, 1) is first
    second = job.points_until(121.0, 1)
    assert second[:2] == first
    assert len(second) == 3
    assert job.points_until(61.0, 1) == first


def test_gain_is_the_share_of_the_possible_reduction_and_never_falls() -> None:
    job = learning()
    gains = [job.gain(60.0 * epoch) for epoch in range(11)]
    assert gains == pytest.approx([0.0, 0.5, 0.5, 0.75] + [0.75] * 7)


def test_gain_is_whole_at_the_best_of_the_sweep_and_zero_without_any_to_be_had() -> None:
    assert learning(best_of_sweep=1.0).gain(180.0) == 1.0
    assert learning(best_of_sweep=4.0).gain(180.0) == 0.0
    assert learning(losses=np.array([4.0, 5.0]), best_of_sweep=1.0).gain(600.0) == 0.0
