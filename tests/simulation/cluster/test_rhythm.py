"""When schedulers look at the queue."""

import math

import pytest

from simulation.cluster.rhythm import Alarm, Rhythm


@pytest.mark.parametrize(
    ("not_before_s", "after_s", "expected_s"),
    [(0.0, -math.inf, 1.0), (1.0, -math.inf, 1.0), (1.1, -math.inf, 4.0), (1.0, 1.0, 4.0), (2.0, 7.0, 10.0)],
)
def test_looks_are_an_interval_apart(not_before_s: float, after_s: float, expected_s: float) -> None:
    assert Rhythm(3.0, offset_s=1.0).next_s(not_before_s, after_s) == expected_s


def test_measured_looks_come_first_and_the_interval_goes_on_from_the_last() -> None:
    rhythm = Rhythm(3.0, offset_s=1.0, measured_s=(2.5, 5.6, 8.0))
    found = [rhythm.next_s(time_s, -math.inf) for time_s in (0.0, 2.5, 2.6, 8.0, 8.1, 11.0, 12.0)]
    assert found == [2.5, 2.5, 5.6, 8.0, 11.0, 11.0, 14.0]
    assert [rhythm.next_s(0.0, after_s) for after_s in (2.5, 5.6, 8.0, 11.0)] == [5.6, 8.0, 11.0, 14.0]


def test_an_alarm_rings_once_for_the_soonest_look_that_it_was_asked_for() -> None:
    alarm = Alarm(Rhythm(10.0))
    assert not alarm.rings(10.0)
    assert alarm.ask(15.0) == 20.0
    assert alarm.ask(12.0) is None
    assert alarm.ask(3.0) == 10.0
    assert [alarm.rings(10.0), alarm.rings(10.0), alarm.rings(20.0)] == [True, False, False]
    assert alarm.ask(10.0) == 20.0
