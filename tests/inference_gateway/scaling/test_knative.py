"""The formulas of the Knative Pod Autoscaler, worked out by hand."""

import itertools

import pytest

from inference_gateway.model import Capacity, Observation
from inference_gateway.scaling.published import Knative, KnativeOptions
from tests.inference_gateway.scaling.seconds import Service

TEN = Capacity(requests_per_s=5.0, concurrency=10, start_s=60.0)  # target: 7 in flight per replica


def service(ready: int, **options: object) -> Service:
    return Service(Knative(KnativeOptions(**options), TEN), ready)


def test_stable_is_the_ceiling_of_the_60_s_mean_over_70_percent() -> None:
    steady = service(1)
    # 13.9 in flight need ceil(13.9 / 7) = 2, which is less than twice the one ready: no panic
    counts = [steady.second(0, in_flight=7).replicas for _ in range(120)]
    assert set(counts) == {1}
    counts = [steady.second(0, in_flight=13).replicas for _ in range(120)]
    assert counts[-1] == 2


def test_a_stable_window_forgets_after_60_s() -> None:
    falling = service(1)
    falling.feed([0] * 100, in_flight=7)
    falling.ready = 4
    after = falling.feed([0] * 61, in_flight=0)
    assert after[-1] == 1


def test_panic_begins_at_twice_the_ready_replicas_and_looks_6_s_back() -> None:
    burst = service(1)
    burst.feed([0] * 60)
    # 6 s at 14 after the burst: ceil(14 / 7) = 2 = 2 x ready. The stable mean would ask for 1 only.
    counts = burst.feed([0] * 7, in_flight=14)
    assert counts[-1] == 2
    assert "in panic" in burst.second(0, in_flight=14).reason


def test_below_twice_the_ready_replicas_there_is_no_panic() -> None:
    calm = service(2, stable_window=600)
    calm.feed([0] * 700, in_flight=14)
    assert "in panic" not in calm.rule.decide(Observation(2000.0, 0, 21, 0, 2, 0)).reason


def test_in_panic_never_down_and_out_of_it_after_a_stable_window() -> None:
    burst = service(1)
    burst.feed([0] * 60)
    burst.feed([0] * 10, in_flight=70)
    peak = burst.replicas
    assert peak == 10
    quiet = burst.feed([0] * 120)
    assert quiet[45] == peak
    assert quiet[-1] < peak


def test_at_most_half_in_one_step_down() -> None:
    falling = service(1)
    falling.feed([0] * 60, in_flight=7)
    falling.ready = 9
    falling.feed([0] * 60, in_flight=7 * 9)
    counts = falling.feed([0] * 200)
    steps = [(a, b) for a, b in itertools.pairwise(counts) if b < a]
    assert steps
    assert all(b >= a // 2 for a, b in steps)


def test_at_most_max_up_times_the_ready_in_one_step() -> None:
    burst = service(1, max_up=3.0)
    assert burst.feed([0] * 3, in_flight=700)[:3] == [3, 3, 9]


def test_a_fresh_autoscaler_with_several_ready_starts_in_panic() -> None:
    """Lost history never scales down: with nothing in flight, four replicas stay for a stable window."""
    fresh = service(4)
    counts = fresh.feed([0] * 200)
    assert counts[:60] == [4] * 60
    assert counts[-1] == 0


def test_a_fresh_autoscaler_with_one_ready_does_not() -> None:
    assert "in panic" not in service(1).second(0).reason


def test_the_delay_keeps_the_most_that_was_wanted() -> None:
    for delay_s, kept in ((0.0, False), (300.0, True)):
        delayed = service(1, scale_down_delay_s=delay_s)
        delayed.feed([0] * 60, in_flight=7)
        delayed.feed([0] * 60, in_flight=21)
        assert (delayed.feed([0] * 150)[-1] >= 3) is kept


def test_ticks_are_2_s_apart() -> None:
    burst = service(1)
    first = burst.second(0, in_flight=0)
    assert burst.second(0, in_flight=700) is first
    assert burst.second(0, in_flight=700).replicas > 1


def test_arrivals_as_metric() -> None:
    """A target of 70 % of 5 requests/s."""
    steady = service(1, metric="rps")
    assert steady.feed([7] * 200)[-1] == 2


def test_zero_only_after_the_grace() -> None:
    idle = service(1)
    wanted = [idle.rule.decide(Observation(float(s), 0, 0, 0, 1, 0)).replicas for s in range(1, 60)]
    assert wanted[:30] == [1] * 30
    assert wanted[-1] == 0


@pytest.mark.parametrize("queued", [0, 5])
def test_queued_requests_are_in_the_signal(queued: int) -> None:
    steady = service(1)
    assert steady.feed([0] * 120, in_flight=5, queued=queued)[-1] == (2 if queued else 1)
