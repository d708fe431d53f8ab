"""The figures of small runs, worked out by hand."""

from dataclasses import asdict, replace

import pytest

from inference_gateway.scaling.rules import Bounds
from simulation.requests.replay import measure, replica_seconds_of
from simulation.requests.service import RunningBatch, SimulatedReplica
from simulation.requests.settings import RequestSettings, StartTime, StepTime
from tests.simulation.requests.test_engine import run

ONE = RequestSettings(concurrency=1)


def test_every_figure_of_three_requests() -> None:
    """They wait 0, 1.5 and 2.4 s for the one replica, which works from 0 to 4 s."""
    outcome = run([0.0, 0.5, 0.6], [2.0, 1.0, 1.0], 1, concurrency=1)
    assert asdict(measure(outcome, ONE)) == {
        "rule": "scripted",
        "requests": 3,
        "slo_misses": 1,
        "slow": 0,
        "slo_miss_share": pytest.approx(1 / 3),
        "failed": 0,
        "replica_seconds": 4.0,
        "queue_p50_s": 1.5,
        "queue_p99_s": 2.382,  # between the second and the third, 2 x 99 % of the way from the first
        "latency_p50_s": 2.5,
        "latency_p99_s": 3.382,
        "utilization": 1.0,
        "peak_replicas": 1,
        "scale_outs": 0,
        "scale_ins": 0,
        "span_s": 4.0,
    }


@pytest.mark.parametrize(("slo_s", "misses"), [(2.4, 0), (2.3, 1), (1.5, 1), (1.4, 2), (0.0, 2)])
def test_the_slo_is_the_longest_wait_within_it(slo_s: float, misses: int) -> None:
    outcome = run([0.0, 0.5, 0.6], [2.0, 1.0, 1.0], 1, concurrency=1)
    # Sums of binary fractions: a wait of 2.4 s is a hair above or below it.
    outcome.wait_s[2] = round(outcome.wait_s[2], 6)  # type: ignore[index]
    assert measure(outcome, RequestSettings(concurrency=1, slo_s=slo_s)).slo_misses == misses


def test_a_failed_request_misses_every_slo_and_was_no_work() -> None:
    outcome = run([0.0, 1.0], [50.0, 10.0], 1, concurrency=1, deadline_s=30.0)
    found = measure(outcome, RequestSettings(concurrency=1, deadline_s=30.0, slo_s=30.0))
    assert (found.slo_misses, found.failed, found.queue_p50_s) == (1, 1, 15.0)
    assert (found.latency_p50_s, found.utilization, found.span_s) == (50.0, 1.0, 50.0)


def test_without_an_answer_there_is_no_latency() -> None:
    outcome = run([0.0], [1.0], 0, initial=0, deadline_s=3.0)
    found = measure(outcome, RequestSettings(deadline_s=3.0, initial=0, slo_s=2.0))
    assert (found.latency_p50_s, found.latency_p99_s, found.failed) == (None, None, 1)


def test_without_replicas_there_is_no_utilization() -> None:
    outcome = run([0.0], [1.0], 0, initial=0, deadline_s=0.5, slo_s=0.5, bounds=Bounds(0, 64, 64))
    found = measure(outcome, RequestSettings(deadline_s=0.5, slo_s=0.5))
    assert (found.failed, found.replica_seconds, found.utilization) == (1, 0.0, None)


def test_work_is_counted_against_all_that_the_replicas_could_do() -> None:
    outcome = run([0.0], [8.0], 2, initial=2, concurrency=4)
    found = measure(outcome, RequestSettings(concurrency=4))
    assert (found.replica_seconds, found.utilization) == (16.0, 0.125)


def test_replicas_that_start_and_drain_count() -> None:
    """One serves to the end; two are asked for at 1 s and given up at 2 s; one more is asked for at 3 s."""
    outcome = run([0.0], [10.0], 3, 1, 2, start=StartTime(60.0))
    found = measure(outcome, RequestSettings())
    assert (found.peak_replicas, found.scale_outs, found.scale_ins) == (3, 2, 1)
    assert found.replica_seconds == 10 + 2 * 1 + 7
    drained = run([0.0, 0.1], [10.0, 6.0], 1, initial=2, concurrency=1)
    assert replica_seconds_of(drained) == pytest.approx(10 + 6.1)


def test_one_that_follows_another_at_once_is_not_beside_it() -> None:
    none = Bounds(0, 64, 64)
    drains = run([0.0], [10.0], 0, 1, initial=1, bounds=none)
    assert measure(drains, RequestSettings()).peak_replicas == 2, "the first one drains until its answer"
    follows = run([5.5], [2.0], 0, 1, 0, 1, initial=1, start=StartTime(60.0), bounds=none)
    assert [(one.asked_s, one.gone_s) for one in follows.replicas[:2]] == [(0.0, 1.0), (2.0, 3.0)]
    assert measure(follows, RequestSettings()).peak_replicas == 1
    at_once = replace(
        follows,
        replicas=[
            SimulatedReplica(0, 0.0, 0.0, RunningBatch(StepTime()), 0, 5.0),
            SimulatedReplica(1, 5.0, 5.0, RunningBatch(StepTime()), 0, 9.0),
        ],
    )
    assert measure(at_once, RequestSettings()).peak_replicas == 1


def test_the_warm_up_counts_from_its_end_on() -> None:
    """A request in the very moment counts; replicas cost from then on, those that are gone by then nothing."""
    outcome = run([0.0, 60.0, 70.0], [50.0, 5.0, 20.0], 1, concurrency=1)
    for warmup_s, requests, replica_seconds in ((60.0, 2, 30.0), (60.5, 1, 29.5), (0.0, 3, 90.0)):
        found = measure(outcome, RequestSettings(concurrency=1, warmup_s=warmup_s))
        assert (found.requests, found.replica_seconds) == (requests, replica_seconds)
    # 25 s of work are counted then, and the 50 s before are not.
    assert measure(outcome, RequestSettings(concurrency=1, warmup_s=60.0)).utilization == pytest.approx(
        25 / 30, abs=1e-4
    )
    busy = run([0.0, 100.0], [10.0, 10.0], 3, 1, *[1] * 98, 2, concurrency=1, start=StartTime(60.0))
    figures = [
        (found.peak_replicas, found.scale_outs, found.scale_ins, found.span_s)
        for warmup_s in (0.0, 2.0, 90.0)
        for found in [measure(busy, RequestSettings(concurrency=1, warmup_s=warmup_s))]
    ]
    assert figures == [(3, 2, 1, 110.0), (2, 1, 1, 108.0), (2, 1, 0, 20.0)]
    gone = run([0.0, 100.0], [1.0, 1.0], 1, initial=3, concurrency=1)
    assert measure(gone, RequestSettings(concurrency=1, warmup_s=50.0)).replica_seconds == 51.0
