"""Simulated replicas as they come and go."""

import random

from inference_gateway.queueing import Reading
from simulation.requests.service import SimulatedReplica, SimulatedReplicas
from simulation.requests.settings import StartTime, StepTime, Work


def fleet(starting: int, *in_flight: int) -> SimulatedReplicas:
    """Ready replicas with so many requests at 0 s, and then starting ones."""
    made = SimulatedReplicas(StartTime(60.0), 4, random.Random(0), StepTime())
    made.add_ready(len(in_flight), 0.0)
    for replica, requests in zip(made.ready, in_flight, strict=True):
        replica.in_flight = requests
    made.add(starting, 1.0)
    return made


def numbers(replicas: list[SimulatedReplica]) -> list[int]:
    return [replica.number for replica in replicas]


def test_they_are_ready_when_they_have_started() -> None:
    made = fleet(2)
    assert [(one.asked_s, one.ready_s, one.gone_s) for one in made.every] == [(1.0, 61.0, None)] * 2
    made.started(made.every[0])
    assert (numbers(made.ready), numbers(made.starting)) == ([0], [1])


def test_the_newest_starting_ones_go_first_and_then_the_least_loaded() -> None:
    made = fleet(2, 3, 1, 2)
    made.release(3, 9.0)
    assert (numbers(made.starting), numbers(made.ready), numbers(made.draining)) == ([], [0, 2], [1])
    assert [one.gone_s for one in made.every] == [None, None, None, 9.0, 9.0]
    made.started(made.every[3])
    assert numbers(made.ready) == [0, 2], "it was cancelled"
    made.release(0, 9.0)
    assert numbers(made.ready) == [0, 2]


def test_no_more_starting_ones_go_than_are_given_up() -> None:
    made = fleet(3, 1)
    made.release(2, 9.0)
    assert (numbers(made.starting), numbers(made.ready)) == ([1], [0])


def test_an_idle_one_is_gone_at_once_and_a_busy_one_after_its_last_answer() -> None:
    made = fleet(0, 0, 2, 3)
    made.release(2, 9.0)
    assert (made.every[0].gone_s, numbers(made.draining), made.in_flight) == (9.0, [1], 5)
    for at_s in (10.0, 11.0):
        assert made.every[1].gone_s is None
        made.finished(made.every[1], at_s)
    assert (made.every[1].gone_s, made.draining, made.in_flight) == (11.0, [], 3)


def test_of_equals_the_newest_leaves() -> None:
    made = fleet(0, 1, 1)
    made.release(1, 9.0)
    assert numbers(made.draining) == [1]


def test_the_least_loaded_with_room() -> None:
    assert fleet(1).least_loaded() is None
    assert fleet(0, 4, 4).least_loaded() is None
    found = fleet(0, 3, 1, 4).least_loaded()
    assert found is not None
    assert found.number == 1


def test_a_long_prompt_goes_where_the_least_is_left_to_read_and_a_short_one_where_requests_are_few() -> None:
    made = fleet(0, 2, 1, 4)
    assert made.least_to_read(Work(1e9, 0), 0.0) is made.every[1], "who counts requests is not told of prompts"
    made.reading = Reading(1000.0)
    prompts = ((99, 0.0), (3000, 0.0), (9, 1.0), (9, 3.0))
    chosen = [made.least_to_read(Work(tokens, 0), at_s) for tokens, at_s in prompts]
    assert [one.number for one in chosen if one is not None] == [1, 1, 0, 1], "nobody reads, all do, one does, nobody"
    made.every[0].in_flight = 4
    assert made.least_to_read(Work(3000, 0), 4.0) is made.every[1]
    made.every[1].in_flight = 4
    assert made.least_to_read(Work(3000, 0), 4.0) is None
