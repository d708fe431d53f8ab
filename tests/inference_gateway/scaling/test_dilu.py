"""Dilu's rule against the published constants and a plain restatement of its loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_gateway.model import Capacity, Observation
from inference_gateway.scaling.published import Dilu, DiluOptions
from inference_gateway.scaling.rules import build
from tests.inference_gateway.scaling.seconds import Service

TEN = Capacity(requests_per_s=10.0, concurrency=4, start_s=60.0)


def service(ready: int, **options: int) -> Service:
    return Service(Dilu(DiluOptions(**options), TEN), ready)


def test_scales_out_after_exactly_20_seconds_above_capacity() -> None:
    assert service(1).feed([11] * 20) == [1] * 19 + [2]


def test_capacity_itself_is_not_above_it() -> None:
    assert service(1).feed([10] * 100) == [1] * 100


def test_scales_in_after_exactly_30_seconds_below_one_replica_less() -> None:
    assert service(3).feed([19] * 30) == [3] * 29 + [2]


def test_the_capacity_of_one_less_is_not_below_it() -> None:
    assert service(3).feed([20] * 100) == [3] * 100


def test_one_replica_per_20_seconds_however_large_the_burst() -> None:
    assert service(1).feed([1000] * 60) == [1] * 19 + [2] * 20 + [3] * 20 + [4]


def test_never_below_one() -> None:
    assert service(2).feed([0] * 200)[-1] == 1


def test_a_replica_fits_between_out_and_in() -> None:
    """The hysteresis is one T: at N x T nothing happens, nor at (N-1) x T."""
    for rate in (20, 25, 30):
        assert service(3).feed([rate] * 200) == [3] * 200


def test_20_of_40_in_any_order() -> None:
    assert service(1).feed([11, 0] * 20) == [1] * 38 + [2, 2]


def test_starting_replicas_count() -> None:
    slow = service(1)
    slow.start_s = 1000
    assert slow.feed([11] * 100)[-1] == 2  # two replicas hold 20/s, though one is not ready yet


def test_what_is_held_back_is_no_action() -> None:
    """At the maximum the window stays: one second after room appears, the rule acts."""
    held = service(1)
    rule = held.rule
    for second in range(1, 41):
        held.now_s = second
        wanted = rule.decide(_seen(second, 11, ready=1))
    assert wanted.replicas == 2
    assert rule.decide(_seen(41, 11, ready=1)).replicas == 2
    assert rule.decide(_seen(42, 11, ready=2)).replicas == 2  # taken: the window is empty again


def test_a_replica_that_dies_does_not_empty_the_window() -> None:
    rule = service(2).rule
    for second in range(1, 20):
        rule.decide(_seen(second, 25, ready=2))
    assert rule.decide(_seen(20, 25, ready=1)).replicas == 2


def test_first_request_of_a_service_without_replicas() -> None:
    assert service(0).feed([0, 0, 1]) == [0, 0, 1]


def test_another_capacity_counts_from_now_on() -> None:
    quick = service(1)
    quick.rule.calibrate(Capacity(100.0, 4, 60.0))
    assert quick.feed([11] * 60) == [1] * 60


@pytest.mark.parametrize("option", ["out_of_window", "in_of_window"])
def test_thresholds_must_fit_the_window(option: str) -> None:
    with pytest.raises(Exception, match="accepted are at most 40"):
        build("dilu", {option: 41}, TEN)


@given(st.lists(st.integers(0, 60), max_size=300), st.integers(1, 5))
def test_as_the_published_loop(rates: list[int], start: int) -> None:
    """The loop restated in the words of its description: append, count, act, clear."""
    replicas = start
    history: list[int] = []
    expected: list[int] = []
    for rate in rates:
        history = [*history, rate][-40:]
        if len([r for r in history if r > replicas * 10]) >= 20:
            replicas, history = replicas + 1, []
        elif len([r for r in history if r < (replicas - 1) * 10]) >= 30 and replicas > 1:
            replicas, history = replicas - 1, []
        expected.append(replicas)
    assert service(start).feed(rates) == expected


def _seen(now_s: int, arrivals: int, ready: int) -> Observation:
    return Observation(float(now_s), arrivals, 0, 0, ready, 0)
