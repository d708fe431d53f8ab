import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.exploratory.recorded import RecordedCurve
from benchmarks.exploratory.workload import Workload, abandoned_share
from benchmarks.tests.curve_builders import falling, recorded
from explsched.errors import ExplschedError
from simulation.traces.trace import ClusterShape, Trace, TraceJob

CLUSTER = ClusterShape(2, 4)


def search(data: str, model: str) -> list[RecordedCurve]:
    """A hyper-parameter search: some trainings learn, some crawl, one diverges."""
    good = [recorded(falling(0.1, 0.06 + 0.01 * i), data=data, model=model, seed=i) for i in range(6)]
    slow = [recorded(falling(0.1, 0.001), data=data, model=model, seed=10 + i) for i in range(5)]
    return [*good, *slow, recorded(falling(0.1, 0.1)[:9], data=data, model=model, epochs=80, seed=20)]


CURVES = [*search("toys", "mlp"), *search("toys", "cnn"), *search("tools", "mlp")]
WORKLOAD = Workload(jobs=120, sweep_sizes=(4, 8))


def generated(**changes: object) -> Trace:
    return replace(WORKLOAD, **changes).generate(CURVES, CLUSTER)


def asked_gpu_s(job: TraceJob) -> float:
    assert job.learning is not None
    until_s = job.learning.abandoned_at_s
    return job.gpus * (job.run_s if until_s is None else until_s)


def sweeps(trace: Trace) -> dict[str, list[TraceJob]]:
    found: dict[str, list[TraceJob]] = {}
    for job in trace.jobs:
        assert job.learning is not None
        assert job.learning.exploration.sweep is not None
        found.setdefault(job.learning.exploration.sweep, []).append(job)
    return found


def test_jobs_are_as_many_as_asked_for_with_distinct_ids() -> None:
    trace = generated()
    assert sorted(job.job_id for job in trace.jobs) == list(range(1, 121))


def test_the_overload_is_met() -> None:
    for overload in (1.0, 3.0):
        trace = generated(overload=overload)
        window_s = sum(map(asked_gpu_s, trace.jobs)) / (overload * CLUSTER.gpus)
        last_s = max(job.submit_s for job in trace.jobs)
        assert 0.6 * window_s < last_s < 1.05 * window_s


def test_a_sweep_has_one_owner_one_model_and_no_training_twice() -> None:
    for jobs in sweeps(generated()).values():
        assert len({job.user for job in jobs}) == 1
        assert len({job.model for job in jobs}) == 1
        assert len({id(job.learning.losses) for job in jobs if job.learning}) == len(jobs) <= 8


def test_all_gain_towards_the_best_of_their_sweep() -> None:
    for jobs in sweeps(generated()).values():
        ends = [job.learning.gain(job.run_s) for job in jobs if job.learning]
        assert max(ends) == pytest.approx(1.0)
        assert min(ends) >= 0.0


def test_the_owners_of_crawling_and_diverged_trainings_give_them_up() -> None:
    trace = generated()
    for jobs in sweeps(trace).values():
        ends = [(job, one, one.gain(job.run_s)) for job in jobs if (one := job.learning)]
        learned = any(gain > 0.9 and one.losses[0] > 2 * one.losses[-1] for _, one, gain in ends)
        for job, one, gain in ends:
            crawls = learned and gain < 0.1
            if crawls or len(one.losses) <= job.iterations:
                assert one.abandoned_at_s is not None
                assert 0 < one.abandoned_at_s < job.run_s
    assert 0.3 < abandoned_share(trace) < 1.0
    assert abandoned_share(Trace.of(dataclasses.replace(job, learning=None) for job in trace.jobs)) == 0.0


def test_run_times_are_epochs_times_their_duration_and_within_the_limit() -> None:
    for job in generated().jobs:
        assert job.learning is not None
        epoch_s = job.learning.times_s[1]
        assert job.run_s == pytest.approx(job.iterations * epoch_s)
        assert job.learning.times_s == pytest.approx(job.learning.steps * epoch_s)
        assert job.iterations == job.learning.total_steps
        assert job.time_limit_s is not None
        assert 1.5 * job.run_s <= job.time_limit_s <= 1.5 * job.run_s + 3600


def test_no_gang_is_larger_than_the_cluster() -> None:
    small = ClusterShape(1, 2)
    gpus = [job.gpus for job in WORKLOAD.generate(CURVES, small).jobs]
    assert set(gpus) == {1, 2}


def test_the_seed_decides_and_nothing_else() -> None:
    def essence(trace: Trace) -> list[tuple[object, ...]]:
        return [(job.job_id, job.submit_s, job.gpus, job.run_s, job.model, job.user) for job in trace.jobs]

    assert essence(generated(seed=3)) == essence(generated(seed=3))
    assert essence(generated(seed=3)) != essence(generated(seed=4))


def test_a_sweep_needs_siblings() -> None:
    lonely = [recorded(np.array([1.0, 0.5]), data=name) for name in ("a", "b")]
    with pytest.raises(ExplschedError, match="at least two recorded trainings"):
        WORKLOAD.generate(lonely, CLUSTER)
