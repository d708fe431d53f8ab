"""Replicas that batch continuously: steps grow with the batch, prompts are read in pieces."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from inference_gateway.model import Decision, Observation
from inference_gateway.scaling.rules import Bounds
from simulation.requests.engine import Batching, RequestOutcome, simulate
from simulation.requests.replay import RequestReplay, measure
from simulation.requests.service import SimulatedReplicas
from simulation.requests.settings import RequestReplayError, RequestSettings, StartTime, StepTime, Work
from simulation.requests.trace import Request, RequestTrace

STEP = StepTime(10.0, 1.0, 0.1, 1000)


class Fixed:
    """A rule that keeps one replica."""

    name = "fixed"

    def decide(self, _seen: Observation) -> Decision:
        return Decision(1, "")

    def calibrate(self, _capacity: object) -> None:
        pass


def run(arrival_s: list[float], work: list[Work], step: StepTime = STEP) -> RequestOutcome:
    how = RequestSettings(concurrency=64, queue_target_s=0.0, bounds=Bounds(1, 1, 1))
    return simulate(arrival_s, [1.0] * len(arrival_s), Fixed(), how, batching=Batching(step, work))


def test_a_request_alone() -> None:
    """500 prompt tokens in one step of 10 + 50 ms, then 99 steps of 11 ms."""
    found = run([1.0], [Work(500, 99)])
    assert found.first_s == [pytest.approx(0.06)]
    assert found.latency_s == [pytest.approx(0.06 + 99 * 0.011)]


def test_a_long_prompt_is_read_in_pieces() -> None:
    found = run([0.0], [Work(2500, 0)])
    assert found.first_s == [pytest.approx(2.5 * 0.11)]


def test_steps_grow_with_the_batch() -> None:
    alone, crowd = run([0.0], [Work(0, 100)]), run([0.0] * 40, [Work(0, 100)] * 40)
    assert alone.latency_s == [pytest.approx(1.1)]
    assert crowd.latency_s == [pytest.approx(5.0)] * 40


def test_a_prompt_slows_those_that_decode() -> None:
    """Ten steps of 110 ms (and one more request, once it has been read) instead of 11 ms."""
    found = run([0.0, 0.5], [Work(0, 200), Work(10_000, 0)])
    assert found.latency_s[0] == pytest.approx(200 * 0.011 + 10 * (0.111 - 0.011), rel=1e-3)


def test_who_is_answered_makes_the_others_quicker() -> None:
    found = run([0.0, 0.0], [Work(0, 100), Work(0, 200)])
    assert found.latency_s == [pytest.approx(1.2), pytest.approx(1.2 + 1.1)]


def stepwise(arrival_s: list[float], work: list[Work]) -> list[float]:
    """Latencies, by taking every step by itself; a request joins at the next one."""
    now_s, waiting = 0.0, list(range(len(work)))
    reading: list[int] = []
    decoding: dict[int, float] = {}
    left = [one.prompt_tokens for one in work]
    latency = [0.0] * len(work)
    while waiting or reading or decoding:
        if not reading and not decoding:
            now_s = max(now_s, arrival_s[waiting[0]])
        while waiting and arrival_s[waiting[0]] <= now_s:
            reading.append(waiting.pop(0))
        room = float(STEP.chunk)
        for one in reading:
            taken = min(room, left[one])
            left[one] -= taken
            room -= taken
        now_s += STEP.seconds(len(decoding), STEP.chunk - room)
        for one in list(decoding):
            decoding[one] -= 1
            if decoding[one] <= 0:
                del decoding[one]
                latency[one] = now_s - arrival_s[one]
        for one in [one for one in reading if not left[one]]:
            reading.remove(one)
            decoding[one] = work[one].steps
    return latency


@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_taking_every_step_by_itself_gives(seed: int) -> None:
    """But for the part of a step that a request waits for the next one."""
    draw = random.Random(seed)
    arrival_s = sorted(draw.uniform(0, 20) for _ in range(60))
    work = [Work(draw.randrange(1, 3000), draw.randrange(1, 300)) for _ in arrival_s]
    found, exact = np.array(run(arrival_s, work).latency_s), np.array(stepwise(arrival_s, work))
    assert abs(found.mean() / exact.mean() - 1) < 0.03
    assert np.max(np.abs(found - exact)) < 0.15 * exact.mean()


def test_objectives_are_for_the_first_token_and_for_each_one_after_it() -> None:
    outcome = run([0.0] * 40, [Work(0, 100)] * 40)
    how = RequestSettings(concurrency=64, slo_s=1.0, tpot_s=0.049)
    found = measure(outcome, how)
    assert (found.slo_misses, found.slow) == (40, 40)
    quick = measure(outcome, RequestSettings(concurrency=64, slo_s=1.0, tpot_s=0.051))
    assert (quick.slo_misses, quick.slow) == (0, 0)


def test_rules_are_told_what_the_first_hundred_requests_take() -> None:
    requests = tuple(Request(float(at), 100, 10 if at < 100 else 1000) for at in range(200))
    replay = RequestReplay.of(RequestTrace(requests), STEP, RequestSettings(concurrency=8))
    assert replay.capacity.requests_per_s == pytest.approx(8 / STEP.service_s(requests[0], 8))


def test_a_full_replica_answers_as_many_as_its_service_time_says() -> None:
    requests = tuple(Request(0.0, 1000, 101) for _ in range(2000))
    how = RequestSettings(
        concurrency=16, queue_target_s=0.0, deadline_s=80_000, slo_s=1.0, bounds=Bounds(1, 1, 1), start=StartTime(0.0)
    )
    replay = RequestReplay.of(RequestTrace(requests), STEP, how)
    assert replay.under("target", {}).end_s == pytest.approx(2000 / replay.capacity.requests_per_s, rel=0.05)


@pytest.mark.parametrize(("rule", "seed"), [("knative", 7), *(("slurm", seed) for seed in range(7, 13))])
def test_answers_three_times_as_long_are_late_for_no_longer_than_a_start_and_90_s(rule: str, seed: int) -> None:
    """From 1,500 s on; the requests come as before. The rules were told what the first hundred take."""
    draw = random.Random(seed)
    at_s, requests = 0.0, []
    while (at_s := at_s + draw.expovariate(4.0)) < 2700:
        tokens = max(1, round(150 * np.exp(draw.gauss(0, 0.8)))) * (3 if at_s >= 1500 else 1)
        requests.append(Request(at_s, 500, tokens))
    how = RequestSettings(concurrency=16, slo_s=2.0, queue_target_s=2.0, initial=3, start=StartTime(60.0))
    outcome = RequestReplay.of(RequestTrace(tuple(requests)), StepTime(30.0, 1.0, 0.1), how).under(rule, {})
    late = [at for at, first in zip(outcome.arrival_s, outcome.first_s, strict=True) if first > 2.0 and at >= 1500]
    assert late
    assert max(late) - 1500 <= 90 + 60, "late requests end"


def test_what_replicas_read_is_measured_as_the_gateway_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with other requests are longer, so a little less than what a replica alone reads."""
    known: list[float] = []
    measure_reading = SimulatedReplicas.measure_reading

    def measured(replicas: SimulatedReplicas) -> None:
        measure_reading(replicas)
        known.append(replicas.reading.prompt_tokens_per_s)

    monkeypatch.setattr(SimulatedReplicas, "measure_reading", measured)
    requests = tuple(Request(0.7 * number, 500 + 4000 * (number % 3), 50) for number in range(100))
    how = RequestSettings(concurrency=16, initial=2, bounds=Bounds(2, 2, 2))
    RequestReplay.of(RequestTrace(requests), STEP, how).under("slurm", {})
    alone = STEP.chunk / STEP.seconds(1, STEP.chunk)
    assert known[0] > 0
    assert all(0.8 * alone < rate <= 1.01 * alone for rate in known[1:])
    known.clear()
    RequestReplay.of(RequestTrace(requests), STEP, replace(how, prompt_tokens_per_s=alone)).under("slurm", {})
    assert not known, "who is told does not measure"


@pytest.mark.parametrize("text", ["", "12", "12:0.3", "0:1:1", "-1:1:1", "a:b:c", "nan:1:1", "1:1:1:1"])
def test_a_step_time_that_makes_no_sense(text: str) -> None:
    with pytest.raises(RequestReplayError, match="accepted: ms per step"):
        StepTime.parse(text)


def test_a_step_time() -> None:
    assert StepTime.parse("12:0.35:0.05") == StepTime()
