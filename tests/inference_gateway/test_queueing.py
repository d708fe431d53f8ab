"""Whose turn it is: the numbers worked out by hand, and what the order does for a replica with too much to do."""

import pytest

from inference_gateway.queueing import Fleet, Turns
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
