"""Whose turn it is: the numbers worked out by hand, and what the order does for a replica with too much to do."""

import pytest

from inference_gateway.queueing import LEAST_STRETCHES, Fleet, ReadingTimer, Stretch, Turns, reading_rate
from simulation.requests.service import FirstInFirstOut, InTurn
from tests.simulation.requests.test_engine import run

TURNS = Turns(target_s=2.0, deadline_s=30.0, requests_per_s=10.0, concurrency=8)


def test_in_time_is_who_can_still_be_served_before_the_target() -> None:
    assert TURNS.in_time_s == pytest.approx(1.85)
    assert Turns(0.2, 30.0, 10.0, 8).in_time_s == 0.1


def test_those_in_time_may_fill_the_free_places_and_the_buffer() -> None:
    """What two replicas take in a tenth of a second is 2; of slow ones there is one all the same."""
    assert TURNS.room(Fleet(ready=2, free=3)) == 5
    assert TURNS.room(Fleet(ready=2, free=0, queued=2)) == 0
    assert Turns(2.0, 30.0, 0.5, 8).room(Fleet(ready=2, free=0, queued=0)) == 1


def test_late_ones_are_patient_for_ten_targets_or_half_of_the_deadline() -> None:
    assert (Turns(2.0, 120.0, 10.0, 8).patience_s, TURNS.patience_s) == (20.0, 15.0)


def test_late_ones_leave_a_reserve_while_they_are_patient() -> None:
    """0.15 of 16 places are 2.4."""
    fleet = Fleet(ready=2, free=4)
    assert TURNS.room_for_late(fleet, in_time=0, waited_s=14.9) == pytest.approx(1.6)
    assert TURNS.room_for_late(fleet, in_time=0, waited_s=15.0) == 4
    assert TURNS.room_for_late(fleet, in_time=3, waited_s=15.0) == 1


def filled(arrival_s: list[float]) -> InTurn:
    """One replica without a free place; the first request is in HAProxy's queue, the others are held."""
    queue = InTurn(Turns(2.0, 300.0, 1.0, 8), arrival_s)
    for request, at_s in enumerate(arrival_s):
        queue.add(request, at_s, Fleet(ready=1, free=0))
    return queue


def test_the_oldest_in_time_goes_first_and_the_late_ones_last() -> None:
    queue = filled([0.0, 0.1, 1.0, 2.5, 2.6])
    full = Fleet(ready=1, free=0)
    order = []
    while queue.held > 2:
        order.append(queue.take(3.0))
        queue.release_due(3.0, full)
    order.append(queue.take(3.0))
    queue.release_due(3.0, full)
    assert queue.take(3.0) is None  # late ones do not wait in HAProxy's queue
    queue.release_due(3.0, Fleet(ready=1, free=8))
    order += [queue.take(3.0), queue.take(3.0)]
    assert order == [0, 3, 4, 1, 2]


def test_who_finds_room_is_not_held() -> None:
    queue = InTurn(Turns(2.0, 300.0, 30.0, 8), [0.0] * 4)
    held = []
    for request in range(4):
        queue.add(request, 0.0, Fleet(ready=1, free=0))
        held.append(queue.held)
    assert held == [0, 0, 0, 1]


def test_the_reserve_holds_late_ones_back() -> None:
    """0.15 of 8 places are 1.2: two must be free, and of four two more may go."""
    queue = filled([0.0, 0.1, 0.2, 0.3, 0.4])
    assert queue.take(9.0) == 0
    queue.release_due(9.0, Fleet(ready=1, free=1))
    assert queue.take(9.0) is None
    queue.release_due(9.0, Fleet(ready=1, free=4))
    assert [queue.take(9.0) for _ in range(4)] == [1, 2, 3, None]
    assert queue.held == 1


def test_the_oldest_and_its_deadline() -> None:
    queue = filled([0.0, 0.1, 0.2, 5.0])
    queue.release_due(5.0, Fleet(ready=1, free=0))
    oldest = []
    while queue:
        oldest.append(queue.oldest)
        queue.drop_oldest()
    assert oldest == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="empty"):
        _ = queue.oldest


def test_without_a_replica_nobody_is_held() -> None:
    queue = InTurn(TURNS, [0.0, 0.0])
    queue.add(0, 0.0, Fleet(ready=0, free=0))
    queue.add(1, 0.0, Fleet(ready=0, free=0))
    assert queue.held == 0
    assert [queue.take(0.0), queue.take(0.0), queue.take(0.0)] == [0, 1, None]


def test_first_in_first_out() -> None:
    queue = FirstInFirstOut()
    for request in range(3):
        queue.add(request, 0.0, Fleet(ready=1, free=0))
    queue.release_due(100.0, Fleet(ready=1, free=0))
    assert (queue.oldest, queue.held, len(queue)) == (0, 0, 3)
    queue.drop_oldest()
    assert [queue.take(100.0) for _ in range(3)] == [1, 2, None]


def test_too_many_requests_make_the_surplus_late_not_everybody() -> None:
    """11 requests/s for a replica that takes 10/s, for 300 s: a tenth of them cannot be in time, whatever the order."""
    arrivals = [i / 11 for i in range(3300)]
    late = {
        target_s: sum(w > 2.0 for w in run(arrivals, [0.8] * 3300, 1, queue_target_s=target_s, deadline_s=30.0).wait_s)
        for target_s in (0.0, 2.0)
    }
    assert late[0.0] > 3000
    assert late[2.0] < 310


def test_a_prompt_is_read_until_its_first_token() -> None:
    timer = ReadingTimer()
    timer.begin("a", 1000.0, 5.0)
    timer.first("a", 5.5)
    timer.first("a", 6.0)
    timer.end("a")
    timer.begin("b", 300.0, 8.0)
    timer.first("b", 8.1)
    assert [(one.amount, round(one.seconds, 6)) for one in timer.stretches] == [(1000.0, 0.5), (300.0, 0.1)]


def test_prompts_without_a_pause_are_one_stretch_whatever_their_order() -> None:
    timer = ReadingTimer()
    for name, at_s in (("a", 0.0), ("b", 0.1), ("c", 0.2)):
        timer.begin(name, 100.0, at_s)
    for name, at_s in (("b", 0.4), ("c", 0.5), ("a", 0.6)):
        timer.first(name, at_s)
    assert list(timer.stretches) == [Stretch(300.0, 0.6)]


def test_a_server_that_always_reads_is_measured_too() -> None:
    """Every second; then what is read is what came until the first token after it."""
    timer = ReadingTimer()
    for number in range(10):
        timer.begin(number, 500.0, 0.0)
    for number in range(10):
        timer.first(number, 0.5 * (number + 1))
    assert list(timer.stretches) == [Stretch(1000.0, 1.0)] * 5


def test_what_is_read_beside_somebody_whose_first_token_is_not_seen_does_not_count() -> None:
    timer = ReadingTimer()
    timer.begin("a", 100.0, 0.0)
    timer.begin_unseen("plain")
    timer.first("a", 1.0)
    assert not timer.stretches
    timer.begin("b", 100.0, 2.0)
    timer.first("b", 3.0)
    assert list(timer.stretches) == [Stretch(100.0, 1.0)], "the plain one, sent before, had been read before"
    timer.begin_unseen("another")
    timer.begin("c", 100.0, 4.0)
    timer.first("c", 5.0)
    timer.end("another")
    assert len(timer.stretches) == 1


def test_who_leaves_while_read_spoils_the_stretch_alone() -> None:
    timer = ReadingTimer()
    timer.begin("a", 100.0, 0.0)
    timer.begin("b", 100.0, 0.0)
    timer.end("a")
    timer.first("b", 0.7)
    assert not timer.stretches
    timer.begin("c", 100.0, 1.0)
    timer.first("c", 1.2)
    assert len(timer.stretches) == 1


def test_the_rate_is_that_of_half_of_all_that_was_read() -> None:
    """Short prompts spend their time otherwise, and a server that starts is slow once."""
    short, long, slow = Stretch(10.0, 0.05), Stretch(5000.0, 1.0), Stretch(4000.0, 10.0)
    assert reading_rate([short] * 40 + [long] * 3 + [slow]) == pytest.approx(5000.0)
    assert reading_rate([long] * (LEAST_STRETCHES - 1)) == 0.0
    assert reading_rate([]) == 0.0
