"""The best order of waiting requests that does not know how long answers will be."""

import random
from itertools import permutations

from benchmarks.gateway_order import InTimeFirst, in_time_first
from inference_gateway.queueing import Fleet
from inference_gateway.scaling.rules import Bounds, build
from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestSettings
from simulation.requests.trace import Request, RequestTrace

SETTINGS = RequestSettings(concurrency=1, bounds=Bounds(1, 1, 1), slo_s=2.0, deadline_s=100.0)


def replay(arrival_s: list[float], service_s: float) -> RequestReplay:
    requests = tuple(Request(at_s, service_s=service_s) for at_s in arrival_s)
    return RequestReplay.of(RequestTrace(requests), None, SETTINGS)


def fewest(arrival_s: list[float], service_s: float) -> int:
    """Requests that start more than 2 s after they came, under the best of all orders that leave no place free."""

    def late(order: tuple[int, ...]) -> int:
        free_s, found = 0.0, 0
        for at, request in enumerate(order):
            start_s = max(free_s, min(arrival_s[waiting] for waiting in order[at:]))
            if arrival_s[request] > start_s:
                return len(order)
            found += start_s - arrival_s[request] > SETTINGS.slo_s
            free_s = start_s + service_s
        return found

    return min(late(order) for order in permutations(range(len(arrival_s))))


def test_a_late_request_waits_for_those_in_time() -> None:
    queue = InTimeFirst([0.0, 1.0, 4.0], target_s=2.0)
    for request in range(3):
        queue.add(request, 0.0, Fleet(ready=1, free=0))
    assert queue.oldest == 0
    assert [queue.take(4.5) for _ in range(3)] == [2, 0, 1]
    assert not len(queue)


def test_at_its_deadline_the_oldest_goes() -> None:
    queue = InTimeFirst([0.0, 1.0, 9.0], target_s=2.0)
    for request in range(3):
        queue.add(request, 0.0, Fleet(ready=1, free=0))
    assert queue.take(9.0) == 2
    queue.drop_oldest()
    assert (queue.oldest, len(queue)) == (1, 1)


def test_no_order_of_equal_requests_has_fewer_misses() -> None:
    drawn = random.Random(7)
    for _ in range(30):
        arrival_s = sorted(round(drawn.uniform(0, 8), 2) for _ in range(7))
        arrival_s = [at_s - arrival_s[0] for at_s in arrival_s]
        case = replay(arrival_s, 1.6)
        rule = build("dilu", {}, case.capacity)
        assert in_time_first(case, rule).slo_misses == fewest(arrival_s, 1.6)
