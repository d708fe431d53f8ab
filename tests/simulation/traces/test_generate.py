"""Generated traces follow what was asked for."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from simulation.cli.trace import summarize
from simulation.traces.generate import GPU_COUNTS, MODELS, GangShare, WorkloadSpec, asked_s, generate, profile
from simulation.traces.trace import ClusterShape, StageTimes, TraceError

CLUSTER = ClusterShape(8, 8)


def test_the_same_seed_gives_the_same_trace_and_another_another() -> None:
    spec = WorkloadSpec(200, CLUSTER)
    assert generate(spec, 1) == generate(spec, 1)
    assert generate(spec, 1).jobs != generate(spec, 2).jobs


@pytest.mark.parametrize("load", [0.3, 1.0, 5.5])
def test_the_load_is_as_asked(load: float) -> None:
    trace = generate(WorkloadSpec(500, CLUSTER, load=load), 3)
    assert summarize(trace).load(CLUSTER) == pytest.approx(load, rel=1e-6)


def test_a_load_so_low_that_the_trace_could_not_be_read_is_refused() -> None:
    with pytest.raises(TraceError, match="load is 1e-06: the last job would come after .* s, accepted: up to 1e"):
        generate(WorkloadSpec(10_000, ClusterShape(1, 1), load=1e-6), 1)


def test_another_load_changes_submit_times_only() -> None:
    calm, busy = (generate(WorkloadSpec(100, CLUSTER, load=load), 4).jobs for load in (0.5, 2.0))
    assert [(j.gpus, j.run_s, j.model, j.user, j.time_limit_s) for j in calm] == [
        (j.gpus, j.run_s, j.model, j.user, j.time_limit_s) for j in busy
    ]
    for slow, fast in zip(calm, busy, strict=True):
        assert slow.submit_s == pytest.approx(4 * fast.submit_s, abs=0.005)


def test_gaps_are_exponential() -> None:
    submit_s = np.array([job.submit_s for job in generate(WorkloadSpec(20_000, CLUSTER), 5).jobs])
    gaps = np.diff(submit_s)
    assert submit_s[0] == 0
    # An exponential distribution's deviation equals its mean; a share exp(-1) of it lies above the mean.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert (gaps > gaps.mean()).mean() == pytest.approx(math.exp(-1), abs=0.02)


def test_run_times_are_log_normal_within_bounds() -> None:
    spec = WorkloadSpec(20_000, CLUSTER, median_run_s=3600, sigma=1.0, shortest_run_s=60, longest_run_s=1e6)
    run_s = np.array([job.run_s for job in generate(spec, 6).jobs])
    logs = np.log(run_s)
    assert np.median(run_s) == pytest.approx(3600, rel=0.05)
    assert logs.std() == pytest.approx(1.0, rel=0.05)
    bounded = generate(WorkloadSpec(2000, CLUSTER, sigma=5.0, shortest_run_s=60, longest_run_s=3600), 7).jobs
    # Whole iterations: up to half the longest iteration (1.06 s) beyond the bounds.
    assert all(59 <= job.run_s <= 3601 for job in bounded)


def test_gpu_counts_are_in_proportion_and_fit_the_cluster() -> None:
    spec = WorkloadSpec(20_000, ClusterShape(2, 4), shares=(GangShare(1, 3), GangShare(8, 1), GangShare(16, 96)))
    counts = Counter(job.gpus for job in generate(spec, 8).jobs)
    assert set(counts) == {1, 8}
    assert counts[1] / counts[8] == pytest.approx(3, rel=0.1)


def test_jobs_have_the_stage_times_of_their_model_and_whole_iterations() -> None:
    jobs = generate(WorkloadSpec(2000, CLUSTER), 9).jobs
    assert {job.model for job in jobs} == set(MODELS)
    for job in jobs:
        alone = profile(job.model, job.gpus)
        assert job.stages == StageTimes(alone.io_s, alone.gpu_s, alone.net_s)
        assert job.iterations == int(job.iterations) >= 1
        assert job.run_s == pytest.approx(job.iterations * alone.iteration_s, abs=0.001)


def test_no_job_is_cut_off_by_its_limit() -> None:
    for job in generate(WorkloadSpec(2000, CLUSTER), 10).jobs:
        assert job.time_limit_s is not None
        assert job.time_limit_s >= 1.2 * job.run_s


def test_people_ask_for_round_times() -> None:
    assert [asked_s(needed) for needed in (1, 600, 601, 3600, 200_000, 7 * 86400, 7 * 86400 + 1)] == [
        600, 600, 1800, 3600, 259_200, 7 * 86400, 14 * 86400
    ]  # fmt: skip


def test_few_users_own_most_jobs() -> None:
    jobs = generate(WorkloadSpec(20_000, CLUSTER, users=10), 11).jobs
    owned = Counter(job.user for job in jobs)
    assert len(owned) == 10
    assert owned["user1"] / owned["user2"] == pytest.approx(2, rel=0.1)
    assert owned["user1"] / owned["user10"] == pytest.approx(10, rel=0.2)
    equal = Counter(job.user for job in generate(WorkloadSpec(20_000, CLUSTER, users=4, zipf_exponent=0), 11).jobs)
    assert max(equal.values()) / min(equal.values()) < 1.1


def test_the_opportunistic_share_is_as_asked() -> None:
    jobs = generate(WorkloadSpec(20_000, CLUSTER, opportunistic=0.2), 12).jobs
    assert sum(job.priority for job in jobs) / len(jobs) == pytest.approx(0.2, abs=0.02)


def test_one_job_alone_is_submitted_at_0() -> None:
    (job,) = generate(WorkloadSpec(1, CLUSTER), 13).jobs
    assert job.submit_s == 0


def test_every_model_has_a_profile_for_every_count() -> None:
    for model in MODELS:
        for gpus in GPU_COUNTS:
            alone = profile(model, gpus)
            longest = max(alone.io_s, alone.gpu_s, alone.net_s)
            # vgg on one GPU: loading alone is measured a little above the whole iteration.
            assert 0 < longest <= 1.1 * alone.iteration_s
            assert (alone.net_s == 0) == (gpus == 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"jobs": 0}, "jobs is 0, accepted: 1 to"),
        ({"load": 0}, "load is 0"),
        ({"load": math.nan}, "load is nan"),
        ({"sigma": -1}, "sigma is -1"),
        ({"median_run_s": math.inf}, "median_run_s is inf"),
        ({"longest_run_s": 1}, "longest_run_s is 1, accepted: 10 to"),
        ({"users": 0}, "users is 0"),
        ({"limit_multiples": ()}, "limit_multiples is empty"),
        ({"limit_multiples": (0.5,)}, "limit_multiples is 0.5, accepted: 1 to"),
        ({"shares": (GangShare(3, 1),)}, "shares: 3 GPUs, accepted: 1, 2, 4, 8, 16, 32"),
        ({"shares": (GangShare(1, -1),)}, "shares is -1"),
        ({"shares": (GangShare(1, 0),)}, "no job fits"),
        ({"cluster": ClusterShape(1, 1), "shares": (GangShare(2, 1),)}, "no job fits the cluster's 1 GPUs"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(fields: dict[str, object], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        WorkloadSpec(**{"jobs": 10, "cluster": CLUSTER, **fields})
