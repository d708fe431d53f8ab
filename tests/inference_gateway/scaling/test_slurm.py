"""The default rule: how soon it scales out, how far ahead it looks, and how lazily it scales in."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_gateway.model import Capacity
from inference_gateway.scaling.slurm import Slurm, SlurmOptions
from tests.inference_gateway.scaling.seconds import Service

# A request takes 4 s; 4 at once are 1 request/s.
CAPACITY = Capacity(requests_per_s=1.0, concurrency=4, start_s=60.0)
WINDOW_S = 30


def service(ready: int, capacity: Capacity = CAPACITY, **options: float) -> Service:
    """A service whose rule has a headroom and a window of its own, so that the defaults may be others."""
    given = SlurmOptions(**{"headroom": 1.4, "in_starts": 0.5, **options})
    return Service(Slurm(given, capacity), ready, start_s=int(capacity.start_s))


def staffed(rate: float, headroom: float = 1.4) -> int:
    """Square-root staffing of Poisson arrivals, worked out anew."""
    work = rate * 4
    return math.ceil((work + headroom * math.sqrt(work)) / 4)


def test_steady_load_gets_square_root_staffing() -> None:
    for rate in (1, 4, 9, 25):
        assert service(1).feed([rate] * 600, in_flight=4 * rate)[-1] == staffed(rate)


def test_a_burst_of_eight_replicas_is_decided_within_3_seconds() -> None:
    quiet = service(1)
    quiet.feed([1] * 300, in_flight=3)
    before = quiet.replicas
    counts = quiet.feed([8] * 3, in_flight=4, queued=12)
    assert before <= 2
    assert counts[-1] >= 8
    assert counts[-1] <= 12


@pytest.mark.parametrize(("ready", "replicas"), [(1, 2), (0, 2)])
def test_a_few_long_requests_at_once_are_no_rate(ready: int, replicas: int) -> None:
    """Six requests of 30 s each, sent together: two replicas have a place for each, and for as many again."""
    at_once = service(ready, Capacity(8 / 30, 8, 60.0), headroom=0.7)
    at_once.feed([0] * 600)
    at_once.ready = ready
    in_flight = 6 if ready else 0
    counts = at_once.feed([6, *[0] * 29], in_flight=in_flight, queued=6 - in_flight)
    assert max(counts) == replicas


def test_a_long_burst_of_long_requests_gets_its_rate() -> None:
    """One a second that takes 30 s: once thirty have come, there are as many as the rate will keep busy."""
    busy = service(1, Capacity(8 / 30, 8, 60.0))
    for second in range(60):
        busy.second(1, in_flight=min(8, second), queued=max(0, min(30, second) - 8))
    assert busy.replicas >= staffed(30 / 8)


def test_a_backlog_asks_for_more_until_it_is_gone() -> None:
    same_rate = [4] * 300
    assert service(5).feed(same_rate, in_flight=16, queued=200)[-1] > service(5).feed(same_rate, in_flight=16)[-1]


def test_a_fresh_rule_does_not_act_on_three_noisy_seconds() -> None:
    assert service(5).feed([7, 7, 7], in_flight=14) == [5, 5, 5]


def test_half_of_what_is_spare_goes_at_once() -> None:
    counts = service(9).feed([0] * 500)
    assert list(dict.fromkeys(counts)) == [9, 5, 3, 2, 1]


def test_a_rising_rate_is_met_ahead() -> None:
    """On a ramp the rule has, before the rate gets there, what the rate will need when a start is over."""
    ramp = service(1)
    for second in range(900):
        ramp.second(round(second / 20), in_flight=round(second / 5))
    assert ramp.replicas >= staffed(900 / 20 + 60 / 20, headroom=0.0)


def test_a_forecast_is_at_most_half_above_the_last_minute() -> None:
    """However long a start takes: what rose for some minutes, as in a burst, will not rise for an hour."""
    slow = service(1, Capacity(1.0, 4, 3600.0), headroom=0.0)
    for second in range(900):
        slow.second(round(second / 20), in_flight=round(second / 5))
    last_minute = (900 - 30) / 20
    assert staffed(900 / 20, headroom=0.0) < slow.replicas <= staffed(1.5 * last_minute, headroom=0.0) + 1


def test_starting_replicas_count_as_capacity() -> None:
    burst = service(1, Capacity(1.0, 4, 1000.0))
    burst.feed([1] * 200, in_flight=3)
    counts = burst.feed([6] * 200, in_flight=4)
    assert max(counts) <= staffed(6) + 2


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.lists(st.integers(0, 12), min_size=WINDOW_S, max_size=WINDOW_S + 60))
def test_no_scale_in_for_a_whole_window_after_a_restart(ready: int, arrivals: list[int]) -> None:
    counts = service(ready).feed(arrivals)
    assert min(counts[: WINDOW_S - 1]) >= ready


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 200)), max_size=8))
def test_a_whole_window_between_any_action_and_a_scale_in(phases: list[tuple[int, int]]) -> None:
    changing = service(1)
    counts = [1]
    for rate, seconds in phases:
        counts += changing.feed([rate] * seconds, in_flight=min(4 * rate, 4 * changing.ready))
    actions = [second for second in range(1, len(counts)) if counts[second] != counts[second - 1]]
    for earlier, later in pairwise(actions):
        if counts[later] < counts[later - 1]:
            assert later - earlier >= WINDOW_S


def test_scale_in_needs_both_signals() -> None:
    for in_flight, arrivals in ((25, 0), (0, 6)):
        held = service(8)
        assert held.feed([arrivals] * 400, in_flight=in_flight)[-1] == 8
    assert service(8).feed([0] * 400)[-1] < 8


def test_a_longer_start_is_waited_for_longer() -> None:
    for start_s, window_s in ((10.0, 30), (120.0, 60), (240.0, 120)):
        counts = service(3, Capacity(1.0, 4, start_s)).feed([0] * 600)
        assert counts.index(2) == window_s - 1


def test_a_need_just_below_a_whole_number_keeps_the_replica() -> None:
    """At 4 requests/s the need is (16 + 1.4 x 4) / 4 = 5.4; with the margin 5.9, and with twice of it 6.4."""
    assert service(7, in_margin=0.5).feed([4] * 300, in_flight=16)[-1] == 6
    assert service(7, in_margin=1.0).feed([4] * 300, in_flight=16)[-1] == 7


def test_one_second_that_needed_it_keeps_the_replica_for_a_window() -> None:
    """A queue of one second is not enough to scale out, but it is in the window for scaling in."""
    held = service(5)
    held.feed([0] * 20)
    held.second(0, in_flight=20, queued=600)
    assert min(held.feed([0] * (WINDOW_S - 1))) >= 5
    assert held.feed([0] * 3)[-1] < 5


def test_the_last_replica_goes_only_after_a_long_rest() -> None:
    resting = service(1)
    resting.feed([1], in_flight=1)
    counts = resting.feed([0] * 900)
    assert counts[598] == 1
    assert counts[-1] == 0


def test_the_rest_before_zero_may_be_short() -> None:
    """What the slow estimates remember of earlier requests does not keep a replica that nobody asks."""
    busy = service(1, Capacity(1.0, 4, 10.0), zero_after_s=30.0)
    assert set(busy.feed([1, 0, 0, 0, 0] * 120)) == {1}
    assert busy.feed([0] * 100).index(0) == 25  # four of the thirty seconds had passed


def test_the_first_request_of_a_service_at_zero() -> None:
    assert service(0).feed([0, 0, 1]) == [0, 0, 1]


def test_a_measured_capacity_counts_from_now_on() -> None:
    measured = service(4)
    measured.feed([4] * 300, in_flight=1)
    measured.rule.calibrate(Capacity(8.0, 32, 60.0))
    assert measured.feed([4] * 900, in_flight=1)[-1] == 1


def test_the_reason_names_the_figures() -> None:
    decision = service(1).second(9, in_flight=4, queued=5)
    for figure in ("panic", "9 requests/s", "5 queued", "dispersion"):
        assert figure in decision.reason


@pytest.mark.parametrize("utilization", [0.5, 1.0])
def test_utilization_scales_the_need(utilization: float) -> None:
    replicas = service(1, utilization=utilization).feed([9] * 900, in_flight=36)[-1]
    assert replicas == math.ceil((36 + 1.4 * 6) / 4 / utilization)
