"""What is read out of a virtual GPU's log."""

import pytest

from benchmarks.kernel_share_log import above_caps, ended_within, request_ms
from benchmarks.kernel_share_run import Ended, Kernel

HIGH, LOW, OTHER = 1, 2, 3
KERNELS = (Kernel("big", 1000, 600, 200), Kernel("small", 500, 400, 100))


def test_a_request_on_top_of_what_runs_is_not_let_in() -> None:
    log = [Ended(LOW, "small", 0, 0, 0, 500), Ended(HIGH, "big", 300, 300, 300, 1000)]
    found = above_caps(log, KERNELS, HIGH, 950)
    assert found.all == pytest.approx(0.2)
    assert found.let_in == 0
    assert found.best_effort == 0


def test_a_best_effort_kernel_launched_last_is_let_in() -> None:
    log = [Ended(HIGH, "big", 0, 0, 0, 1000), Ended(LOW, "small", 100, 100, 500, 900)]
    found = above_caps(log, KERNELS, HIGH, 950)
    assert found.all == found.let_in == pytest.approx(0.4)


def test_a_launch_that_the_driver_had_before_the_request_is_not_let_in() -> None:
    log = [Ended(LOW, "small", 90, 120, 120, 620), Ended(HIGH, "big", 100, 100, 100, 1100)]
    found = above_caps(log, KERNELS, HIGH, 950)
    assert found.all > 0
    assert found.let_in == 0


def test_best_effort_kernels_can_exceed_the_caps_alone() -> None:
    log = [Ended(LOW, "big", 0, 0, 0, 1000), Ended(OTHER, "small", 0, 0, 0, 500)]
    found = above_caps(log, KERNELS, HIGH, 950)
    assert found.all == found.let_in == found.best_effort == pytest.approx(0.5)


def test_what_is_within_the_caps_counts_nothing() -> None:
    log = [
        Ended(LOW, "small", 0, 0, 0, 500),
        Ended(OTHER, "small", 0, 0, 0, 500),
        Ended(HIGH, "big", 500, 500, 500, 900),
    ]
    assert above_caps(log, KERNELS, HIGH, 950).all == 0


def test_a_request_lasts_from_its_first_launch_to_its_last_end() -> None:
    log = [
        Ended(HIGH, "big", 0, 0, 1_000_000, 2_000_000),
        Ended(LOW, "small", 0, 0, 0, 2_500_000),
        Ended(HIGH, "big", 100_000, 100_000, 2_000_000, 3_000_000),
        Ended(HIGH, "big", 5_000_000, 5_000_000, 5_000_000, 6_000_000),  # of a request that is not whole
    ]
    assert request_ms(log, HIGH, 2) == [3.0]


def test_kernels_are_counted_by_their_end() -> None:
    log = [Ended(LOW, "small", 0, 0, 0, end_ns) for end_ns in (99, 100, 150, 200)]
    assert ended_within(log, LOW, 100, 200) == 2
