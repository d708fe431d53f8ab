"""What a replica can do, from requests in flight and answers, second by second."""

from __future__ import annotations

import pytest

from inference_gateway.model import Capacity, Observation, ScaleRule
from inference_gateway.scaling.measured import SHARED, MeasuredRule, ServiceTimes
from inference_gateway.scaling.rules import build

PLACES = 8


def second(in_flight: int, answered: int, *, ready: int = 1, now_s: float = 0.0) -> Observation:
    return Observation(now_s, answered, in_flight, 0, ready, 0, 0, answered)


def measured(prior_rps: float, *seconds: tuple[int, int]) -> float:
    """The service time of a full replica after such seconds of (in flight, answered)."""
    times = ServiceTimes(Capacity(prior_rps, PLACES, 60.0))
    for in_flight, answered in seconds:
        times.add(second(in_flight, answered))
    return PLACES / times.capacity().requests_per_s


@pytest.mark.parametrize("told", [1 / 3, 1.0, 6.7])
def test_what_was_told_wrongly_is_forgotten(told: float) -> None:
    """Eight at a time and two answers a second: four seconds each, whatever the services file says."""
    assert measured(2.0 * told, *[(8, 2)] * 600) == pytest.approx(4.0, rel=0.06)


def test_before_any_answer_the_configured_rate_holds() -> None:
    assert measured(2.0) == 4.0
    assert measured(2.0, (0, 0)) == 4.0


def test_longer_answers_are_noticed_before_the_first_of_them_has_ended() -> None:
    before, after = [(8, 2)] * 600, [(8, 2)] * 4 + [(8, 1), (8, 0), (8, 1), (8, 1), (8, 0), (8, 1)] * 5
    assert measured(2.0, *before) == pytest.approx(4.0, rel=0.05)
    assert measured(2.0, *before, *after) > 8.0


def test_noise_within_three_deviations_is_no_news() -> None:
    quiet = [(8, 2)] * 600
    assert measured(2.0, *quiet, *[(8, 1), (8, 2)] * 15) == pytest.approx(4.0, rel=0.05)


def test_a_batch_that_is_half_empty_is_quicker_than_a_full_one() -> None:
    """Four at a time and two answers a second take two seconds; in a full batch they would take longer."""
    assert measured(2.0, *[(4, 2)] * 600) == pytest.approx(2.0 / (1 - SHARED / 2), rel=0.06)


def test_a_rule_plans_with_what_was_measured() -> None:
    """Told three times what it can do, `dilu` would see no reason to scale out."""

    def after(rule: ScaleRule) -> int:
        return [rule.decide(Observation(now_s, 3, 8, 20, 1, 0, 0, 2)).replicas for now_s in range(400)][-1]

    prior = Capacity(6.0, PLACES, 60.0)
    assert after(build("dilu", {}, prior)) == 1
    assert after(MeasuredRule(build("dilu", {}, prior), prior)) == 2


def test_a_new_start_time_keeps_what_was_measured() -> None:
    prior = Capacity(20.0, PLACES, 60.0)
    rule = MeasuredRule(build("slurm", {}, prior), prior)
    for now_s in range(600):
        rule.decide(second(8, 2, now_s=now_s))
    rule.calibrate(Capacity(20.0, PLACES, 300.0))
    assert rule.times.capacity().start_s == 300.0
    assert rule.times.capacity().requests_per_s == pytest.approx(2.0, rel=0.1)
