"""The event loop: nothing is lost, nothing is counted twice, and small cases worked out by hand."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_gateway.model import Capacity, Decision, Observation
from inference_gateway.queueing import Fleet, Turns
from inference_gateway.scaling.rules import Bounds, build, rules
from simulation.requests import engine
from simulation.requests.engine import RequestOutcome, simulate
from simulation.requests.replay import measure, replica_seconds_of
from simulation.requests.settings import RequestReplayError, RequestSettings, StartTime


class Scripted:
    """A rule that says what a list says, the last entry for ever; and remembers what it saw."""

    name = "scripted"

    def __init__(self, *replicas: int) -> None:
        self.script = replicas
        self.seen: list[Observation] = []

    def decide(self, seen: Observation) -> Decision:
        self.seen.append(seen)
        return Decision(self.script[min(len(self.seen), len(self.script)) - 1], "scripted")

    def calibrate(self, capacity: Capacity) -> None:
        raise AssertionError(capacity)


def run(arrivals: list[float], services: list[float], *replicas: int, **how: object) -> RequestOutcome:
    return simulate(arrivals, services, Scripted(*replicas), RequestSettings(**how))


def test_one_request_after_the_other() -> None:
    outcome = run([0.0, 0.5, 0.6], [2.0, 1.0, 1.0], 1, concurrency=1)
    assert outcome.wait_s == [0.0, 1.5, pytest.approx(2.4)]
    assert outcome.end_s == 4.0
    assert replica_seconds_of(outcome) == 4.0


def test_a_replica_serves_as_many_as_its_concurrency() -> None:
    assert run([0.0, 0.1, 0.2], [2.0, 2.0, 2.0], 1, concurrency=2).wait_s == [0.0, 0.0, 1.8]


def test_a_second_replica_takes_over_when_it_has_started() -> None:
    outcome = run([0.0, 0.1], [100.0, 1.0], 2, concurrency=1, start=StartTime(10.0))
    assert outcome.wait_s == [0.0, pytest.approx(10.9)]  # asked for at 1 s, ready at 11 s


def test_the_deadline() -> None:
    outcome = run([0.0, 1.0, 95.0], [100.0, 1.0, 1.0], 1, concurrency=1, deadline_s=30.0)
    assert outcome.failed == {1}
    assert outcome.wait_s == [0.0, 30.0, 5.0]
    metrics = measure(outcome, RequestSettings(concurrency=1, slo_s=10.0))
    assert (metrics.slo_misses, metrics.failed, metrics.requests) == (1, 1, 3)


def test_at_one_time_answers_come_before_arrivals_and_these_before_the_rule() -> None:
    assert run([0.0, 2.0], [2.0, 1.0], 1, concurrency=1).wait_s == [0.0, 0.0]
    rule = Scripted(1)
    simulate([1.0, 1.5], [1.0, 1.0], rule, RequestSettings(concurrency=1))
    assert [(seen.arrivals, seen.in_flight) for seen in rule.seen[:2]] == [(1, 1), (1, 1)]
    ready = run([0.0, 11.0], [100.0, 1.0], 2, concurrency=1, start=StartTime(10.0))
    assert ready.wait_s == [0.0, 0.0]


def test_a_request_that_reaches_its_deadline_has_failed_even_if_a_replica_becomes_free() -> None:
    outcome = run([0.0, 0.0, 0.5], [5.0, 1.0, 1.0], 1, concurrency=1, deadline_s=5.0, queue_target_s=0.0)
    assert outcome.failed == {1}
    assert outcome.wait_s == [0.0, 5.0, 4.5]
    assert outcome.end_s == 6.0


def test_a_run_ends_with_its_last_answer_or_failure() -> None:
    outcome = run([0.0, 1.0], [2.0, 2.0], 0, initial=0, deadline_s=5.0, bounds=Bounds(0, 1, 1))
    assert (outcome.failed, outcome.end_s, outcome.replicas) == ({0, 1}, 6.0, [])


def test_progress_is_told_every_second() -> None:
    told: list[tuple[int, int]] = []
    simulate([0.0, 1.5], [1.5, 1.0], Scripted(1), RequestSettings(), lambda done, of: told.append((done, of)))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_what_changed_is_on_record() -> None:
    outcome = run([0.0], [3.5], 2, 2, 1, start=StartTime(60.0))
    changes = [(one.at_s, one.before, one.decision.replicas) for one in outcome.scalings]
    assert changes == [(1.0, 1, 2), (3.0, 2, 1)]


def test_the_order_is_told_what_all_places_of_a_replica_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places of 10 s take 0.2 requests/s."""
    told = []

    def turns(*values: float) -> Turns:
        told.append(values)
        return Turns(*values)

    monkeypatch.setattr(engine, "Turns", turns)
    run([0.0, 0.1], [10.0] * 2, 1, concurrency=2, queue_target_s=29.0, deadline_s=31.0)
    assert told == [(29.0, 31.0, pytest.approx(0.2), 2)]


def test_who_is_held_looks_every_50_ms() -> None:
    """The third is late when the second has been served, at 0.66 s; it was held at 0 s and looks at 0.7 s."""
    outcome = run([0.0] * 3, [0.33] * 3, 1, concurrency=1, queue_target_s=0.2)
    assert outcome.wait_s == pytest.approx([0.0, 0.33, 0.7])


def test_another_order_of_the_waiting_requests() -> None:
    """The last one first."""

    class Stack(list[int]):
        held = 0

        def add(self, request: int, now_s: float, fleet: Fleet) -> None:
            assert (now_s, fleet.ready) == (0.5 * request, 1)
            self.append(request)

        def look(self, now_s: float, fleet: Fleet) -> None:
            raise AssertionError

        def take(self, now_s: float) -> int:
            assert now_s in (0.0, 2.0, 3.0)
            return self.pop()

        @property
        def oldest(self) -> int:
            return self[0]

        def drop_oldest(self) -> None:
            raise AssertionError

    order = Stack()
    outcome = simulate([0.0, 0.5, 1.0], [2.0, 1.0, 1.0], Scripted(1), RequestSettings(concurrency=1), queue=order)
    assert outcome.wait_s == [0.0, 2.5, 1.0]


def test_the_least_loaded_replica_gets_the_request() -> None:
    # Two ready replicas, four requests: nobody waits although each takes two only.
    assert run([0.0, 0.1, 0.2, 0.3], [9.0] * 4, 2, concurrency=2, initial=2).wait_s == [0.0] * 4


def test_what_a_rule_sees() -> None:
    rule = Scripted(3)
    simulate([0.1, 0.2, 0.3, 1.5], [5.0] * 4, rule, RequestSettings(concurrency=2, start=StartTime(60.0)))
    first, second = rule.seen[:2]
    assert (first.now_s, first.arrivals, first.in_flight, first.queued) == (1.0, 3, 2, 1)
    assert (first.ready, first.starting, first.leaving) == (1, 0, 0)
    assert (second.arrivals, second.queued, second.ready, second.starting) == (1, 2, 1, 2)


def test_scale_in_cancels_starting_replicas_first_and_the_newest_of_them() -> None:
    outcome = run([0.0, 200.0], [1.0, 1.0], 3, 2, start=StartTime(60.0))
    assert [replica.gone_s for replica in outcome.replicas] == [201.0, 201.0, 2.0]


def test_scale_in_drains() -> None:
    """Of two busy replicas the less loaded one leaves; its request is answered, and it costs until then."""
    outcome = run([0.0, 0.1, 0.2], [50.0, 20.0, 50.0], 1, initial=2, concurrency=2)
    first, second = outcome.replicas
    assert outcome.wait_s == [0.0, 0.0, 0.0]
    assert (first.gone_s, second.gone_s) == (50.2, pytest.approx(20.1))
    assert replica_seconds_of(outcome) == pytest.approx(70.3)


def test_a_draining_replica_takes_nothing_new() -> None:
    outcome = run([0.0, 0.1, 5.0], [30.0, 30.0, 1.0], 1, initial=2, concurrency=1)
    assert outcome.wait_s[2] == pytest.approx(25.0)


def test_replicas_of_the_future_cost_nothing() -> None:
    """The end of a run is the last answer: what the rule asks for after it does not count."""
    outcome = run([0.0], [0.5], 5)
    assert replica_seconds_of(outcome) == 0.5


def test_no_requests() -> None:
    with pytest.raises(RequestReplayError, match="no requests"):
        run([], [], 1)


def test_random_start_times_repeat_with_their_seed() -> None:
    def waits(seed: int) -> list[float]:
        how = {"start": StartTime(20.0, 0.8), "seed": seed, "concurrency": 1}
        return list(run([0.1 * i for i in range(50)], [3.0] * 50, 6, **how).wait_s)

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(rules())),
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=120),
    service_s=st.floats(0.05, 20),
    concurrency=st.integers(1, 4),
    start=st.builds(StartTime, st.floats(0, 40), st.sampled_from([0.0, 0.5])),
    deadline_s=st.floats(2, 60),
    least=st.integers(0, 2),
)
def test_every_request_is_answered_once_or_failed_once(
    name: str,
    gaps: list[float],
    service_s: float,
    concurrency: int,
    start: StartTime,
    deadline_s: float,
    least: int,
) -> None:
    arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    services = [service_s * (1 + i % 3) for i in range(len(gaps))]
    how = RequestSettings(concurrency, start, deadline_s, min(1.0, deadline_s), bounds=Bounds(least, 6, 3))
    rule = build(name, {}, Capacity(concurrency / service_s, concurrency, start.mean_s))
    outcome = simulate(arrivals, services, rule, how)

    for i, wait_s in enumerate(outcome.wait_s):
        assert wait_s == deadline_s if i in outcome.failed else 0 <= wait_s < deadline_s
    ends = [a + w + (0 if i in outcome.failed else s) for i, (a, w, s) in enumerate(_rows(outcome))]
    assert outcome.end_s == pytest.approx(max(ends))
    # Work in progress never exceeds what the replicas of that moment can hold.
    begun = sorted((a + w, a + w + s) for i, (a, w, s) in enumerate(_rows(outcome)) if i not in outcome.failed)
    for begin_s, _end_s in begun:
        at_s = begin_s + 1e-9  # arrival + wait is rounded: one answer and the next begin may seem to overlap
        running = sum(first <= at_s < last for first, last in begun)
        holding = sum(one.ready_s <= at_s < (one.gone_s or 0) for one in outcome.replicas)
        assert running <= holding * concurrency
    # The sum of replica lives is the integral of the number of replicas.
    edges = sorted({t for one in outcome.replicas for t in (one.asked_s, one.gone_s or 0.0)})
    integral = sum(
        (b - a) * sum(one.asked_s <= a < (one.gone_s or 0.0) for one in outcome.replicas)
        for a, b in itertools.pairwise(edges)
    )
    assert replica_seconds_of(outcome) == pytest.approx(integral)
    metrics = measure(outcome, how)
    assert metrics.requests == len(gaps)
    assert 0 <= metrics.slo_miss_share <= 1
    assert (metrics.utilization or 0.0) <= 1.0001


def _rows(outcome: RequestOutcome) -> list[tuple[float, float, float]]:
    return list(zip(outcome.arrival_s, outcome.wait_s, outcome.steps, strict=True))


def test_a_warm_up_counts_neither_requests_nor_replica_seconds() -> None:
    outcome = run([0.0, 100.0], [50.0, 50.0], 1, concurrency=1)
    metrics = measure(outcome, RequestSettings(concurrency=1, warmup_s=60.0))
    assert (metrics.requests, metrics.replica_seconds) == (1, 90.0)
    with pytest.raises(RequestReplayError, match="the last request arrives at 100 s"):
        measure(outcome, RequestSettings(concurrency=1, warmup_s=101.0))
