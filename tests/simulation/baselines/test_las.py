"""Tiresias' queues: demotion by attained service, first in first out inside, and the starvation knob."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_policy import catalog
from simulation.baselines import LeastAttainedService
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Settings
from simulation.traces.trace import ClusterShape, Trace, TraceJob
from tests.sched_policy.builders import NOW_S, job, running, snapshot

ORDER = LeastAttainedService((1000.0, 5000.0))


def test_service_is_time_times_gpus_and_moves_a_job_down() -> None:
    jobs = [
        running(1, "n1", gpus=4, ran_s=249.0),  # 996 GPU-seconds
        running(2, "n1", gpus=4, ran_s=250.0),  # 1000
        running(3, "n1", gpus=1, ran_s=5000.0),
        job(4, gpus=8, earlier_s=124.0),  # 992
        job(5, gpus=8, earlier_s=125.0),  # 1000
        job(6, gpus=8),
    ]
    ranking = ORDER.rank(snapshot(*jobs))
    # Running jobs come before waiting ones of their queue.
    assert [score.job_id for score in ranking] == [1, 4, 6, 2, 5, 3]


def test_rounding_does_not_put_a_demotion_off() -> None:
    just_short = 1000.0 * (1 - 1e-12)
    assert ORDER.rank(snapshot(running(1, "n1", ran_s=just_short))).values.tolist() == [-0.5]


def test_it_tells_when_the_next_job_falls() -> None:
    jobs = [
        running(1, "n1", gpus=4, ran_s=100.0),
        running(2, "n1", gpus=1, ran_s=400.0),
        running(3, "n1", ran_s=6000.0),
    ]
    assert ORDER.rank(snapshot(*jobs)).stable_until_s == pytest.approx(NOW_S + 150)
    assert ORDER.rank(snapshot(running(3, "n1", ran_s=6000.0), job(4))).stable_until_s == float("inf")


def test_a_job_that_waits_too_long_counts_as_new() -> None:
    patient = job(1, earlier_s=2000.0, queued_s=NOW_S - 3999.0)
    starved = job(2, earlier_s=2000.0, queued_s=NOW_S - 4000.0)
    knob = LeastAttainedService((1000.0, 5000.0), starvation=2.0)
    assert [score.job_id for score in knob.rank(snapshot(patient, starved))] == [2, 1]
    assert [score.job_id for score in ORDER.rank(snapshot(patient, starved))] == [1, 2]
    # It keeps that, once it runs, until it has attained a limit again.
    again = running(3, "n1", ran_s=900.0, earlier_s=2000.0, queued_s=NOW_S - 900.0 - 4000.0)
    assert knob.rank(snapshot(again)).values.tolist() == [0.5]
    assert knob.rank(snapshot(again)).stable_until_s == pytest.approx(NOW_S + 100)
    assert knob.rank(snapshot(patient)).stable_until_s == pytest.approx(NOW_S + 1)


@settings(max_examples=10)
@given(short_s=st.integers(1500, 3000), long_s=st.integers(8000, 15_000))
def test_nobody_starves_with_the_knob_on(short_s: int, long_s: int) -> None:
    """One GPU, and short jobs that keep it busy for as long as they come."""
    stream = [TraceJob(2 + i, 5000.0 + i * short_s, 1, float(short_s)) for i in range(60)]
    trace = Trace.of([TraceJob(1, 0.0, 1, float(long_s)), *stream])

    def long_ends_s(starvation: float) -> float:
        policy = catalog.build("tiresias", catalog.PolicyOptions(quantum_s=600, starvation=starvation))
        outcome = simulate(trace, ClusterShape(1, 1), policy, Settings(interval_s=30))
        return next(record.end_s for record in outcome.jobs if record.job_id == 1)

    last_arrival_s = stream[-1].submit_s
    assert long_ends_s(0.0) > last_arrival_s
    assert long_ends_s(1.0) < last_arrival_s
