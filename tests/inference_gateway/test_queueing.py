"""Two classes of waiting requests: sorted from the length of the queue alone, and right about who is where."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_gateway.queueing import Classes, in_time_per_replica, thousandths
from inference_gateway.simulator.queue import WaitingRequests
from tests.inference_gateway.simulator.test_engine import run


def test_what_the_replicas_take_in_the_targets_time_is_in_time() -> None:
    assert in_time_per_replica(target_s=2.0, requests_per_s=1.5) == pytest.approx(2.1)
    classes = Classes(thousandths(2.1))
    assert [classes.is_late(queued, ready=2) for queued in range(7)] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(
    ("per_replica", "queued", "ready"), [(0.0, 100, 2), (2.1, 0, 2), (2.1, 100, 0)], ids=["fifo", "empty", "cold"]
)
def test_nobody_is_late(per_replica: float, queued: int, ready: int) -> None:
    assert not Classes(thousandths(per_replica)).is_late(queued, ready)


HISTORY = st.lists(st.booleans(), max_size=60)
"""A request comes, or one is taken."""


@given(HISTORY, st.integers(1, 4), st.sampled_from([100, 1000, 1400, 3300]))
@example(comes=[True, True, False, False, True, True, True], ready=1, room=1000)
@example(comes=[True] * 9 + [False] * 9 + [True] * 9, ready=1, room=1000)
def test_the_first_class_is_as_long_as_what_is_in_time_or_one_longer(comes: list[bool], ready: int, room: int) -> None:
    classes = Classes(room)
    most = ready * room // 1000
    first = second = 0
    for come in comes:
        if come and classes.is_late(first + second, ready):
            assert first >= most
            second += 1
        elif come:
            assert first <= max(0, most)
            first += 1
        elif first:
            first -= 1
        else:
            second = max(0, second - 1)


@given(HISTORY, st.integers(1, 4), st.sampled_from([100, 1000, 3300]))
@example(comes=[True] * 5 + [False] * 5, ready=1, room=1000)
def test_the_second_class_waits_for_the_first(comes: list[bool], ready: int, room: int) -> None:
    line, told = WaitingRequests(Classes(room)), Classes(room)
    firsts: list[int] = []
    seconds: list[int] = []
    for number, come in enumerate(comes):
        if come:
            (seconds if told.is_late(len(line), ready) else firsts).append(number)
            line.add(number, ready)
        elif len(line):
            assert line.oldest == min(firsts + seconds)
            assert line.take(0.0) == (firsts or seconds).pop(0)
        assert len(line) == len(firsts) + len(seconds)


def test_too_many_requests_make_the_surplus_late_not_everybody() -> None:
    """11 requests/s for a replica that takes 10/s, for 300 s: a tenth of them cannot be in time, whatever the order."""
    arrivals = [i / 11 for i in range(3300)]
    late = {
        target_s: sum(w > 2.0 for w in run(arrivals, [0.8] * 3300, 1, queue_target_s=target_s, deadline_s=30.0).wait_s)
        for target_s in (0.0, 2.0)
    }
    assert late[0.0] > 3000
    assert late[2.0] < 330
