"""One service: what its rule is told, what was measured and is remembered, and the hold after a restart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_gateway import services
from inference_gateway.control.replica import Phase, Replica, Step
from inference_gateway.control.service import KEPT_STARTS, ServiceControl
from inference_gateway.control.start_times import WaitingLine
from inference_gateway.control.state import ServiceMemory
from inference_gateway.model import Observation, Traffic
from inference_gateway.scaling.measured import MeasuredRule
from inference_gateway.sections import ServiceSection
from tests.inference_gateway.control.doubles import job

NOW_S = 1000.0


def section(**scale: Any) -> ServiceSection:
    """A replica for every 2 requests in flight, without delays."""
    plain = {"utilization": 1.0, "look_back": 1, "up_delay_s": 0, "down_delay_s": 0}
    given = {"rule": "target", "options": plain, "min": 1, "max": 8, "hold_s": 60, "start_s": 30, **scale}
    chat = {"concurrency": 2, "drain_deadline_s": 40, "scale": given, "replica": {"command": "serve {port}"}}
    data = {"listen": {"host": "127.0.0.1"}, "services": {"chat": chat}}
    return services.parse(yaml.safe_dump(data), Path("/srv/services.yaml")).services["chat"]


def control(memory: ServiceMemory | None = None, **scale: Any) -> ServiceControl:
    return ServiceControl("chat", section(**scale), memory or ServiceMemory(), NOW_S)


def replicas(service: ServiceControl, *phases: Phase, **fields: Any) -> list[Replica]:
    return [
        Replica("chat", f"chat-{number}", service.generation, phase, NOW_S, NOW_S, **fields)
        for number, phase in enumerate(phases)
    ]


def decide(service: ServiceControl, present: int, in_flight: int, now_s: float, queued: int = 0) -> int:
    found = service.classify(replicas(service, *[Phase.SERVING] * present), now_s)
    return service.decide(found, Traffic("chat", 0, 0, in_flight, queued), now_s).replicas


def served(service: ServiceControl, after_s: float, load_s: float = 1.0) -> None:
    """A replica serves, `after_s` after its submission and `load_s` after the start of its job."""
    (one,) = replicas(service, Phase.STARTING)
    service.learn(one, Step(one, served_after_s=after_s), NOW_S + load_s)


def failed(service: ServiceControl, asked_s: float, now_s: float) -> bool:
    """A replica's start fails; returns whether the service gives up now."""
    (one,) = replicas(service, Phase.PENDING)
    return service.learn(replace(one, asked_s=asked_s), Step(None, failed=True), now_s)


def test_a_scaling_rule_gets_counts_of_requests_and_replicas() -> None:
    service = control()
    phases = (Phase.SERVING, Phase.SERVING, Phase.PENDING, Phase.STARTING, Phase.SUBMITTING, Phase.DRAINING)
    found = service.classify(replicas(service, *phases), NOW_S)
    service.decide(found, Traffic("chat", 100, 0, 3, 4), NOW_S)
    service.decide(found, Traffic("chat", 107, 0, 3, 4), NOW_S + 1)
    assert service.observation == Observation(NOW_S + 1, 7, 3, 4, ready=2, starting=3, leaving=1, answered=7)


@pytest.mark.parametrize(
    ("now", "arrivals", "answered"),
    [
        (Traffic("chat", 107, 0, 3, 4), 7, 7),
        (Traffic("chat", 107, 0, 5, 6), 7, 3),
        (Traffic("chat", 107, 2, 3, 4), 7, 5),
        (Traffic("chat", 107, 0, 3, 4, 6), 1, 1),
        (Traffic("chat", 100, 0, 2, 4, 1), 0, 0),
        (Traffic("chat", 5, 0, 2, 0), 5, 3),
    ],
    ids=["all", "some go on", "some were refused", "errors of clients", "one of a request before", "a reset"],
)
def test_answered_requests_are_those_that_arrived_and_left(now: Traffic, arrivals: int, answered: int) -> None:
    service = control()
    found = service.classify(replicas(service, Phase.SERVING), NOW_S)
    service.decide(found, Traffic("chat", 100, 0, 3, 4), NOW_S)
    service.decide(found, now, NOW_S + 1)
    assert service.observation is not None
    assert (service.observation.arrivals, service.observation.answered) == (arrivals, answered)


@pytest.mark.parametrize(("counters", "arrivals"), [((5, 9), 4), ((5, 5), 0), ((5, 3), 3), ((5, 0), 0)])
def test_a_falling_counter_counts_from_zero(counters: tuple[int, int], arrivals: int) -> None:
    service = control()
    for counter in counters:
        service.decide(service.classify([], NOW_S), Traffic("chat", counter, 0, 0, 0), NOW_S)
    assert service.observation is not None
    assert service.observation.arrivals == arrivals


def test_what_came_in_a_minute_without_a_decision_did_not_come_in_a_second() -> None:
    """Ten requests a second, answered at once; a pause of the loop is no burst, and asks for no replicas."""
    service = control(rule="slurm", options={}, max=64)
    found = service.classify(replicas(service, Phase.SERVING), NOW_S)
    for second in range(400):
        before = service.decide(found, Traffic("chat", 10 * second, 0, 1, 0), NOW_S + second)
    after = service.decide(found, Traffic("chat", 10 * (399 + 60), 0, 1, 0), NOW_S + 399 + 60)
    assert service.observation is not None
    assert (service.observation.arrivals, service.observation.answered) == (10, 10)
    assert after.replicas == before.replicas


@pytest.mark.parametrize("rule", ["slurm", "knative", "target"])
def test_a_clock_that_is_set_back_stops_no_rule(rule: str) -> None:
    """Set back by an hour in a burst, which goes on."""
    service = control(rule=rule, options={}, max=64)
    found = service.classify(replicas(service, Phase.SERVING), NOW_S)
    clock_s = [*range(80), *range(-3600, -3520)]
    wanted, times = [], []
    for second, at_s in enumerate(clock_s):
        traffic = Traffic("chat", 50 * second, 0, 2, 50 * second)
        wanted.append(service.decide(found, traffic, NOW_S + at_s).replicas)
        assert service.observation is not None
        times.append(service.observation.now_s)
    assert times == [NOW_S + second for second in range(160)]
    assert max(wanted[:80]) > 1
    assert max(wanted[80:]) > 1


class TestTheHoldAfterARestart:
    def test_no_replica_is_removed_before_the_hold_ends(self) -> None:
        service = control()
        assert [decide(service, 4, 0, NOW_S + second) for second in (0, 59.5, 60)] == [4, 4, 1]

    def test_the_decision_names_the_hold(self) -> None:
        service = control()
        decide(service, 4, 0, NOW_S + 20)
        assert service.decision is not None
        assert service.decision.reason.endswith("held for 40 s more after a restart")

    def test_scaling_out_is_not_held(self) -> None:
        service = control()
        assert decide(service, 4, 12, NOW_S) == 6
        assert decide(service, 4, 8, NOW_S) == 4
        assert service.decision is not None
        assert "held" not in service.decision.reason


class TestStartTimes:
    def test_the_configured_start_time_is_used_before_any_is_measured(self) -> None:
        service = control()
        assert (service.start_s, service.slow_start_s) == (30, 30)

    def test_the_median_and_a_high_quantile_of_measured_starts_are_used(self) -> None:
        service = control()
        for seconds in (50, 10, 20, 40, 30, 60, 70, 80, 100, 90):
            served(service, seconds)
        assert (service.start_s, service.slow_start_s) == (50, 90)

    @pytest.mark.parametrize("generation", ["", "of before"])
    def test_waits_in_slurms_queue_are_learnt_whatever_the_event_log_calls_a_start(self, generation: str) -> None:
        service = control()
        (one,) = replicas(service, Phase.PENDING)
        one = replace(one, generation=generation or service.generation)
        starting = one.to(Phase.STARTING, NOW_S + 7)
        service.learn(one, Step(starting, "its job runs", started=True), NOW_S + 7)
        service.learn(one, Step(starting, "started"), NOW_S + 9)
        assert service.memory().waits_s == (7.0,)

    @pytest.mark.parametrize(
        ("present", "queued", "told_s"), [(1, 0, 1), (1, 200, 20), (1, 100_000, 120), (2, 200, 300), (0, 200, 300)]
    )
    def test_refused_clients_are_told_how_long_the_queue_is_where_no_replica_may_start(
        self, present: int, queued: int, told_s: int
    ) -> None:
        """Where one replica is there no other may be. It answers 10 requests a second."""
        service = control(max=1 if present == 1 else 3)
        served(service, 300.0)
        decide(service, present, 0, NOW_S, queued)
        forecast = service.forecast()
        assert forecast is not None
        assert forecast.retry_after_s == told_s

    def test_a_successor_that_only_replaces_is_no_reason_to_wait_for_its_start(self) -> None:
        """It takes 300 s, but the replica that it replaces serves until then, 10 requests a second."""
        service = control(max=1)
        served(service, 300.0, load_s=300.0)
        outgoing, coming = replicas(service, Phase.SERVING, Phase.STARTING)
        found = service.classify([replace(outgoing, generation="of before"), coming], NOW_S)
        service.expect(found.coming, {}, WaitingLine(), NOW_S)
        service.decide(found, Traffic("chat", 0, 0, 0, 200), NOW_S)
        forecast = service.forecast()
        assert forecast is not None
        assert forecast.retry_after_s == 20

    def test_refused_clients_are_told_another_length_of_the_queue_once_it_differs_by_half(self) -> None:
        """Each change is written and sent; that a service has given up is, too, whatever the queue."""
        service = control(max=1, attempts=1)
        found = service.classify(replicas(service, Phase.SERVING), NOW_S)
        told = []
        lengths = (40, 51, 38, 60, 61, 40, 30, 5, 100_000, 1000)
        for count, queued in enumerate(lengths):  # each is refused before the next come, so 10 a second stay the rate
            came, refused = sum(lengths[: count + 1]), sum(lengths[:count])
            service.decide(found, Traffic("chat", came, refused, 0, queued), NOW_S + count)
            told.append(service.forecast())
        failed(service, NOW_S, NOW_S)
        told.append(service.forecast())
        known = [(one.retry_after_s, one.given_up) for one in told if one is not None]
        assert known == [*[(seconds, False) for seconds in (4, 4, 4, 4, 7, 7, 3, 1, 120, 120)], (120, True)]

    def test_the_latest_start_times_survive_a_restart(self) -> None:
        service = control()
        for seconds in range(KEPT_STARTS + 5):
            served(service, float(seconds))
        memory = service.memory()
        assert memory.starts_s == tuple(float(seconds) for seconds in range(5, KEPT_STARTS + 5))
        assert control(memory).start_s == service.start_s

    def test_the_scaling_rule_gets_measured_start_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        service = control(ServiceMemory(starts_s=(77.0,)))
        told: list[float] = []
        monkeypatch.setattr(MeasuredRule, "calibrate", lambda _rule, capacity: told.append(capacity.start_s))
        served(service, 99.0)
        served(service, 99.0)
        assert told == [77.0, 99.0]

    def test_starts_under_way_count_with_the_time_they_have_taken(self) -> None:
        """Two starts of 10 s, and two jobs that have waited for 100 s already: half of all take at least so long."""
        service = control(ServiceMemory(starts_s=(10.0, 10.0)))
        waiting = replicas(service, Phase.PENDING, Phase.PENDING)
        service.expect(waiting, {}, WaitingLine(), NOW_S + 5)
        assert (service.start_s, service.slow_start_s) == (10.0, 10.0), "they may be as quick still"
        service.expect(waiting, {}, WaitingLine(), NOW_S + 100)
        assert (service.start_s, service.slow_start_s) == (10.0, 100.0)
        service.expect(waiting * 2, {}, WaitingLine(), NOW_S + 100)
        assert service.start_s == 100.0

    def test_slurms_estimates_are_corrected_by_how_true_earlier_ones_were(self) -> None:
        """Jobs that Slurm expected in 100 s started after 40: the next one's 50 s are 20, which is remembered."""
        service = control(ServiceMemory(loads_s=(10.0,)))
        for number in range(3):
            now_s = NOW_S + 1000 * number
            one = replace(replicas(service, Phase.PENDING)[0], asked_s=now_s)
            for passed_s, estimate_s in ((0, 100), (20, 50)):
                start_s = now_s + passed_s + estimate_s
                waiting = {one.name: job(7, one.name, "", state="PENDING", start_s=start_s)}
                service.expect([one], waiting, WaitingLine(), now_s + passed_s)
            service.expect([one.to(Phase.STARTING, now_s + 40)], {}, WaitingLine(), now_s + 41)
        assert [(one.said_s, one.came_s) for one in service.memory().foretold] == [(100, 40), (50, 20)] * 3
        (one,) = replicas(service, Phase.PENDING)
        waiting = {one.name: job(8, one.name, "", state="PENDING", start_s=NOW_S + 50)}
        service.expect([one], waiting, WaitingLine(), NOW_S)
        assert service.next_in_s == pytest.approx(50 * 0.4 + 10, rel=0.2)
        assert control(service.memory()).memory() == service.memory()

    @pytest.mark.parametrize(("left_s", "expires"), [(269.0, True), (270.0, False)])
    def test_a_successor_is_submitted_early_enough_for_a_slow_start(self, left_s: float, *, expires: bool) -> None:
        """90 s to start, 180 s in which it may be told to end; the drain deadline is shorter."""
        service = control(ServiceMemory(starts_s=(10.0,) * 4 + (90.0,)))
        (one,) = replicas(service, Phase.SERVING, ends_s=NOW_S + left_s, limit_s=3600.0)
        assert bool(service.classify([one], NOW_S).expiring) == expires
        assert not service.classify([one.to(Phase.STARTING, NOW_S)], NOW_S).expiring


class TestAMinimumSetByCommand:
    def test_a_minimum_is_limited_by_the_maximum(self) -> None:
        service = control(hold_s=0, min=2)
        assert service.minimum == 2
        for minimum, replicas_ in ((3, 3), (0, 0), (99, 8)):
            service.set_minimum(minimum)
            assert (service.minimum, decide(service, 3, 0, NOW_S)) == (replicas_, replicas_)

    def test_a_minimum_leaves_the_other_limits_in_force(self) -> None:
        service = control(hold_s=0, max_pending=2)
        service.set_minimum(2)
        assert [decide(service, 1, 99, NOW_S), decide(service, 8, 99, NOW_S)] == [3, 8]


class TestFailedStarts:
    def test_failed_starts_delay_new_starts_but_no_draining(self) -> None:
        service = control()
        failed(service, NOW_S, NOW_S)
        four = service.classify(replicas(service, *[Phase.SERVING] * 4), NOW_S)
        assert service.moves(four, 8, {}, NOW_S + 1).start == 0
        assert service.moves(four, 8, {}, NOW_S + 5).start == 1
        assert len(service.moves(four, 1, {}, NOW_S + 1).drain) == 3
        service.try_again()
        assert service.moves(four, 8, {}, NOW_S + 1).start == 4

    def test_after_a_failure_one_replica_starts_at_a_time_until_one_has_proved_able(self) -> None:
        service = control()
        failed(service, NOW_S, NOW_S)
        coming = service.classify(replicas(service, Phase.SUBMITTING), NOW_S)
        assert service.moves(coming, 8, {}, NOW_S + 600).start == 0
        served(service, 5.0)
        assert service.moves(coming, 8, {}, NOW_S + 600).start == 0
        service.proved(NOW_S + 65)
        assert service.moves(coming, 8, {}, NOW_S + 600).start == 7

    def test_files_that_cannot_be_written_delay_the_next_start_by_less_than_refusals_of_slurm(self) -> None:
        by_slurm, unwritten = control(), control()
        for number in range(9):
            asked_s = NOW_S + 100 * number
            by_slurm.refused(asked_s, asked_s + 1)
            unwritten.refused(asked_s, asked_s + 1, by_slurm=False)
        assert (by_slurm.attempts.wait_s, unwritten.attempts.wait_s) == (600, 20)

    def test_what_becomes_of_an_earlier_configuration_proves_nothing(self) -> None:
        service = control(attempts=1)
        (one,) = replicas(service, Phase.SERVING)
        before = replace(one, generation="of before")
        assert not service.learn(before, Step(None, failed=True, refused=True), NOW_S + 1)
        assert (service.attempts.failures, service.attempts.refusals) == (0, 0)
        failed(service, NOW_S, NOW_S)
        service.learn(before, Step(before), NOW_S + 100)
        assert service.given_up
        service.learn(one, Step(one), NOW_S + 100)
        assert not service.given_up

    def test_a_service_gives_up_after_the_configured_failures_also_after_a_restart(self) -> None:
        service = control(attempts=2)
        for start_s in (0, 100):
            assert not service.given_up
            assert failed(service, NOW_S + start_s, NOW_S + start_s + 1) == (start_s == 100)
        assert service.given_up
        assert control(service.memory(), attempts=2).given_up
        assert not control(service.memory(), attempts=3).given_up
        assert not failed(service, NOW_S + 200, NOW_S + 201), "it has given up before"
