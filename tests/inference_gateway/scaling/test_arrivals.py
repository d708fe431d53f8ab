"""What arrival counts say: exact windows, robust trend, dispersion."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_gateway.scaling.arrivals import Arrivals


def known(counts: list[int]) -> Arrivals:
    arrivals = Arrivals()
    for count in counts:
        arrivals.add(count)
    return arrivals


@given(st.lists(st.integers(0, 1000), max_size=3000), st.integers(1, 600), st.integers(0, 600))
def test_counts_are_exact_over_ten_minutes(counts: list[int], seconds: int, ago_s: int) -> None:
    end = max(0, min(len(counts), known(counts).seconds) - ago_s)
    kept = counts[-known(counts).seconds :] if counts else []
    assert known(counts).count(seconds, ago_s) == sum(kept[max(0, end - seconds) : end])


def test_ten_minutes_are_kept_whatever_comes() -> None:
    arrivals = known([1] * 10_000)
    assert arrivals.count(600) == 600
    assert arrivals.seconds <= 1200


def test_the_rise_of_a_ramp() -> None:
    assert known([round(second / 10) for second in range(480)]).rise() == pytest.approx(0.1, rel=0.05)


def test_one_burst_is_no_rise() -> None:
    assert known([5] * 240 + [100] * 20 + [5] * 220).rise() == 0.0


def test_noise_is_no_rise_and_a_fall_is_none() -> None:
    draw = random.Random(1)
    assert known([draw.randint(0, 10) for _ in range(480)]).rise() < 0.001
    assert known([1000 - second for second in range(480)]).rise() == 0.0


def test_dispersion_of_a_constant_a_poisson_process_and_batches() -> None:
    assert known([5] * 600).dispersion(5) == 1.0
    draw = random.Random(2)
    poisson = [sum(draw.random() < 0.01 for _ in range(500)) for _ in range(600)]
    assert 1.0 <= known(poisson).dispersion(1) < 1.6
    batches = [30 if draw.random() < 0.1 else 0 for _ in range(600)]
    assert known(batches).dispersion(1) > 10


def test_a_trend_is_no_dispersion() -> None:
    assert known([second // 3 for second in range(600)]).dispersion(5) < 1.6


def test_nothing_is_known_at_first() -> None:
    empty = Arrivals()
    assert (empty.rise(), empty.dispersion(1), empty.rate(3)) == (0.0, 1.0, 0.0)
