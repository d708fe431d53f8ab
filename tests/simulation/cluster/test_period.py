"""When the passes of a scheduler run."""

import math

import pytest

from simulation.cluster.settings import Period, Timer


@pytest.mark.parametrize(
    ("not_before_s", "after_s", "expected_s"),
    [(0.0, -math.inf, 1.0), (1.0, -math.inf, 1.0), (1.1, -math.inf, 4.0), (1.0, 1.0, 4.0), (2.0, 7.0, 10.0)],
)
def test_passes_are_an_interval_apart(not_before_s: float, after_s: float, expected_s: float) -> None:
    assert Period(3.0, offset_s=1.0).next_s(not_before_s, after_s) == expected_s


def test_measured_pass_times_come_first_and_the_interval_goes_on_from_the_last() -> None:
    period = Period(3.0, offset_s=1.0, measured_s=(2.5, 5.6, 8.0))
    found = [period.next_s(time_s, -math.inf) for time_s in (0.0, 2.5, 2.6, 8.0, 8.1, 11.0, 12.0)]
    assert found == [2.5, 2.5, 5.6, 8.0, 11.0, 11.0, 14.0]
    assert [period.next_s(0.0, after_s) for after_s in (2.5, 5.6, 8.0, 11.0)] == [5.6, 8.0, 11.0, 14.0]


def test_a_timer_fires_once_for_the_soonest_requested_pass() -> None:
    timer = Timer(Period(10.0))
    assert not timer.fires(10.0)
    assert timer.request(15.0) == 20.0
    assert timer.request(12.0) is None
    assert timer.request(3.0) == 10.0
    assert [timer.fires(10.0), timer.fires(10.0), timer.fires(20.0)] == [True, False, False]
    assert timer.request(10.0) == 20.0
