"""How long starts take, with those that still go on."""

import pytest

from inference_gateway.control.start_times import Start, StartTimes, median_left_s, quantile


@pytest.mark.parametrize(
    ("ended_s", "going_on_s", "share", "expected_s"),
    [
        ((10, 20, 30, 40), (), 0.5, 20),
        ((10, 20, 30, 40), (), 0.9, 40),
        ((10, 20, 30, 40), (5, 5), 0.5, 20),
        # Three of six are left after 30 s: 1 - 1/6 - 1/6 - 1/6.
        ((10, 20, 30, 40), (35, 90), 0.5, 30),
        ((10,), (15, 15, 60), 0.5, 60),
        ((7,), (), 0.5, 7),
        ((), (3, 4), 0.5, 4),
        # The age of 15 leaves after the first end: 3/4, then 1/2 of that at 20.
        ((10, 20), (15, 25), 0.5, 20),
    ],
)
def test_quantiles_with_censored_times(
    ended_s: tuple[float, ...], going_on_s: tuple[float, ...], share: float, expected_s: float
) -> None:
    assert quantile(ended_s, going_on_s, share) == expected_s


@pytest.mark.parametrize(
    ("ended_s", "age_s", "left_s"), [((10, 20, 30), 0, 20), ((10, 20, 30), 15, 5), ((10, 20, 30), 30, 30), ((), 8, 8)]
)
def test_who_has_waited_for_long_is_compared_with_those_who_waited_longer(
    ended_s: tuple[float, ...], age_s: float, left_s: float
) -> None:
    assert median_left_s(ended_s, (), age_s) == left_s


TIMES = StartTimes(waits_s=(100.0, 200.0, 400.0), loads_s=(60.0, 60.0))


@pytest.mark.parametrize(
    ("starts", "expected_s"),
    [
        ([], None),
        ([Start(running=True, age_s=20.0)], 40.0),
        ([Start(running=False, age_s=50.0, expected_in_s=500.0)], 560.0),
        ([Start(running=False, age_s=50.0, expected_in_s=-3.0)], 60.0),
        ([Start(running=False, age_s=150.0)], 50.0 + 60.0),
        ([Start(running=False, age_s=1000.0)], 1000.0 + 60.0),
        ([Start(running=False, age_s=50.0, expected_in_s=500.0), Start(running=True, age_s=20.0)], 40.0),
    ],
)
def test_the_next_one(starts: list[Start], expected_s: float | None) -> None:
    assert TIMES.next_in_s(starts, configured_s=30.0) == expected_s


@pytest.mark.parametrize(
    ("start", "expected_s"),
    [
        (Start(running=True, age_s=20.0), 10.0),
        (Start(running=True, age_s=45.0), 45.0),
        (Start(running=False, age_s=0.0, expected_in_s=500.0), 530.0),
        (Start(running=False, age_s=50.0), 80.0),
    ],
)
def test_before_anything_is_measured(start: Start, expected_s: float) -> None:
    assert StartTimes((), ()).next_in_s([start], configured_s=30.0) == expected_s


@pytest.mark.parametrize(
    ("came_true", "waits_s", "left_s"),
    [
        ((), (), 100.0),
        ((0.5, 0.5), (30.0, 30.0), 100.0),
        ((0.5, 0.4, 0.9), (), 55.0 - 10.0),
        ((2.0, 2.0, 3.0), (), 220.0 - 10.0),
        ((0.4, 0.4, 0.4), (90.0, 90.0, 90.0, 90.0), 90.0 - 10.0),
        ((0.05, 0.05, 0.6), (5.0, 5.0, 5.0), 66.0 - 10.0),
        ((0.05, 0.05, 0.05), (5.0, 5.0, 5.0), 5.0),
    ],
    ids=[
        "nothing known",
        "too little known",
        "jobs end early",
        "others come before",
        "waits are alike, whatever Slurm says",
        "only one of them lasted so long",
        "it has outlasted all",
    ],
)
def test_slurms_estimate_counts_as_far_as_it_came_true(
    came_true: tuple[float, ...], waits_s: tuple[float, ...], left_s: float
) -> None:
    times = StartTimes(waits_s, (15.0,), came_true)
    start = Start(running=False, age_s=10.0, expected_in_s=100.0)
    assert times.next_in_s([start], 60.0) == pytest.approx(left_s + 15.0)
