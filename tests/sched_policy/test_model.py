"""What a job's own reports say of the time that it has left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sched_policy.improvement import RemainingImprovement
from sched_policy.model import Exploration, ProgressPoint
from tests.sched_policy.builders import NOW_S, job, running


@pytest.mark.parametrize("step", [0, 1])
def test_a_job_that_began_anew_takes_no_longer_for_each_step_than_before(step: int) -> None:
    points = (ProgressPoint(1, 10.0, 0.9), ProgressPoint(50, 500.0, 0.5), ProgressPoint(step, 520.0, 0.9))
    anew = running(1, "n1", restarts=1, total_steps=100, points=points, exploration=Exploration())
    assert anew.known_left_s(NOW_S) == anew.left_s(NOW_S) == pytest.approx((100 - step) * 10.0)
    (horizon_gpu_s,) = RemainingImprovement.of((anew,)).horizon_gpu_s
    assert horizon_gpu_s == pytest.approx((100 - step) * 10.0, rel=0.05)


@pytest.mark.parametrize("first", [0, 1, 5001])
def test_a_job_that_goes_on_from_another_jobs_checkpoint_has_as_much_left_as_it_takes(first: int) -> None:
    """It counted as three hundred times faster: its few GPU-seconds were divided by the steps of both jobs."""
    points = tuple(ProgressPoint(first + i, 2.0 * i, 1.0 / (i + 1)) for i in range(16))
    resumed = running(1, "n1", total_steps=first + 5015, points=points, exploration=Exploration())
    assert resumed.known_left_s(NOW_S) == pytest.approx(5000 * 2.0)
    (horizon_gpu_s,) = RemainingImprovement.of((resumed,)).horizon_gpu_s
    assert horizon_gpu_s == pytest.approx(5000 * 2.0)


def test_reports_that_arrive_together_do_not_make_a_job_faster() -> None:
    """As those of a script whose output is buffered, which `sxrun --follow` reads."""
    together = tuple(ProgressPoint(step, 100.0 + 0.01 * step, 0.5) for step in range(1, 51))
    assert running(1, "n1", total_steps=100, points=together).known_left_s(NOW_S) == pytest.approx(50 * 2.0, rel=0.01)


def test_a_report_before_the_first_step_does_not_make_the_time_limit_an_estimate() -> None:
    begun = running(1, "n1", ran_s=600.0, total_steps=100, points=(ProgressPoint(0, 5.0, 0.9),))
    assert begun.known_left_s(NOW_S) is None
    assert begun.left_s(NOW_S) == 3000.0


def test_what_a_job_that_saves_has_run_is_taken_off_its_time_limit_as_long_as_something_is_left() -> None:
    """Else each preemption of a long job would put it behind all that are shorter than its whole limit."""
    fresh = job(1, time_limit_s=3600.0)
    saves = replace(fresh, exploration=Exploration(checkpoint_signal="USR1"))
    assert replace(saves, earlier_s=3000.0).left_s(NOW_S) == 600.0
    for nearly_all_s in (3500.0, 3600.0):  # a limit is that of each run, and it saved for a next one
        assert replace(saves, earlier_s=nearly_all_s).left_s(NOW_S) == 3600.0
    assert replace(fresh, earlier_s=3000.0).left_s(NOW_S) == 3600.0  # it begins anew
    runs = running(1, "n1", ran_s=600.0, exploration=Exploration(checkpoint_signal="USR1"))
    assert replace(runs, earlier_s=2000.0).left_s(NOW_S) == 1000.0
    assert replace(runs, earlier_s=2000.0).planned_s == 3600.0
