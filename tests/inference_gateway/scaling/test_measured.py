"""What a replica can do, from requests in flight and answers, second by second."""

from __future__ import annotations

import pytest

from inference_gateway.model import Capacity, Observation, ReplicaLoad, ScaleRule
from inference_gateway.scaling.measured import SHARED, MeasuredRule, ReplicaPlaces, ServiceTimes, with_waiting_inside
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


def test_replicas_that_fill_up_with_long_requests_do_not_look_like_longer_answers() -> None:
    """Half a minute each; more and more of them are in flight, and none of the new ones can have ended yet."""
    before, filling = [(60, 2)] * 600, [(60 + 4 * at, 2) for at in range(30)]
    assert measured(PLACES / 30, *before) == pytest.approx(30, rel=0.05)
    assert measured(PLACES / 30, *before, *filling) == pytest.approx(30, rel=0.05)


def test_requests_that_were_in_flight_before_a_restart_have_not_just_begun() -> None:
    assert measured(PLACES / 30, *[(600, 20)] * 10) == pytest.approx(30, rel=0.05)


def test_requests_that_wait_inside_a_full_replica_do_not_begin_twice() -> None:
    """One comes and one is answered every other second; of the ones that wait is known only two seconds later."""
    prior = Capacity(PLACES / 16, PLACES, 60.0)
    rule = MeasuredRule(build("slurm", {}, prior), prior)
    for at in range(600):
        load = ReplicaLoad(PLACES, at // 2 % 2)
        rule.decide(Observation(at, 0, PLACES + (at + 1) // 2 % 2, 0, 1, 0, 0, at % 2, (load,)))
    assert PLACES / rule.times.capacity().requests_per_s == pytest.approx(16, rel=0.1)


def test_noise_within_three_deviations_is_no_news() -> None:
    quiet = [(8, 2)] * 600
    assert measured(2.0, *quiet, *[(8, 1), (8, 2)] * 15) == pytest.approx(4.0, rel=0.05)


def test_requests_too_short_to_be_seen_in_flight_take_some_time_still() -> None:
    assert 0 < measured(2.0, *[(0, 1)] * 600) < 0.2


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


def inside(in_flight: int, *loads: ReplicaLoad, queued: int = 0) -> Observation:
    return Observation(0.0, 0, in_flight, queued, len(loads), 0, loads=loads)


def test_requests_that_wait_inside_replicas_count_as_queued() -> None:
    seen = with_waiting_inside(inside(20, ReplicaLoad(5, 6), ReplicaLoad(7, 2), queued=3))
    assert (seen.in_flight, seen.queued) == (12, 11)


def test_no_more_wait_inside_than_are_in_flight_now() -> None:
    seen = with_waiting_inside(inside(4, ReplicaLoad(5, 6)))
    assert (seen.in_flight, seen.queued) == (0, 4)


def test_without_metrics_nothing_changes() -> None:
    assert with_waiting_inside(inside(20, queued=3)) == inside(20, queued=3)


@pytest.mark.parametrize(
    ("loads", "places"),
    [
        ((), 64),
        ((ReplicaLoad(20, 0),), 64),
        ((ReplicaLoad(0, 0, 0.5),), 64),
        ((ReplicaLoad(20, 0, 0.1),), 64),
        ((ReplicaLoad(20, 0, 0.9),), 20),
        ((ReplicaLoad(20, 4, 1.0),), 18),
        ((ReplicaLoad(20, 0, 0.45),), 40),
        ((ReplicaLoad(20, 0, 0.9), ReplicaLoad(10, 0, 0.6)), 18),
        ((ReplicaLoad(20, 0, 0.9), ReplicaLoad(64, 0)), 42),
        ((ReplicaLoad(4, 16, 0.1),), 4),
        ((ReplicaLoad(4, 16),), 4),
        ((ReplicaLoad(1, 0, 1.0),), 1),
    ],
)
def test_a_replica_takes_what_its_cache_holds_and_no_more_while_requests_wait_in_it(
    loads: tuple[ReplicaLoad, ...], places: int
) -> None:
    found = ReplicaPlaces(0.9)
    found.add(loads, 64)
    assert found.of(64) == places


def test_a_second_of_a_full_cache_says_little_and_old_readings_nothing() -> None:
    places = ReplicaPlaces(0.9)
    for _ in range(59):
        places.add([ReplicaLoad(30, 0, 0.3)], 64)
    places.add([ReplicaLoad(2, 0, 1.0)], 64)
    assert places.of(64) == 64
    for _ in range(60):
        places.add([ReplicaLoad(20, 0, 0.9)], 64)
    assert places.of(64) == 20
    for _ in range(60):
        places.add([], 64)
    assert places.of(64) == 64


def wanted(*loads: ReplicaLoad, replicas: int = 2) -> tuple[int, str]:
    """What the default rule asks for after ten minutes of 40 requests in flight, two replicas and 64 places each."""
    prior = Capacity(8.0, 64, 120.0)
    rule = MeasuredRule(build("slurm", {}, prior), prior)
    decision = rule.decide(Observation(0.0, 5, 40, 0, replicas, 0, 0, 5, loads))
    for now_s in range(1, 600):
        decision = rule.decide(Observation(float(now_s), 5, 40, 0, replicas, 0, 0, 5, loads))
    return decision.replicas, decision.reason


def test_a_service_whose_caches_are_full_needs_more_replicas_than_its_concurrency_says() -> None:
    assert wanted()[0] <= 2
    replicas, reason = wanted(ReplicaLoad(20, 0, 1.0), ReplicaLoad(20, 0, 1.0))
    assert replicas > 2
    assert "replicas take 18 requests each by their metrics" in reason


def test_caches_with_room_ask_for_no_more_replicas() -> None:
    assert wanted(ReplicaLoad(20, 0, 0.4), ReplicaLoad(20, 0, 0.4))[0] <= 2


@pytest.mark.parametrize("usage", [None, 0.1, 1.0])
def test_a_queue_inside_replicas_asks_for_more(usage: float | None) -> None:
    """The data plane takes all 40 for being served, with room for as many again."""
    replicas, reason = wanted(ReplicaLoad(4, 16, usage), ReplicaLoad(4, 16, usage))
    assert "32 of the queued wait inside replicas" in reason
    assert replicas > 2
