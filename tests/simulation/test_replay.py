"""Replays under both conventions, and what the figures of any replay must satisfy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explsched.errors import PolicyError
from sched_policy.model import Exploration
from simulation.cli.replay import TraceReplay, built
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Estimates, Settings
from simulation.muri import MuriOptions
from simulation.results.metrics import measure
from simulation.traces.learning import Learning
from simulation.traces.trace import ClusterShape, StageTimes, Trace, TraceJob

_JOBS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 4), st.integers(1, 900)), min_size=1, max_size=8)


def replay(jobs: list[tuple[int, int, int]], how: Settings | MuriOptions) -> TraceReplay:
    trace = Trace.of(TraceJob(n + 1, float(at), gpus, float(run)) for n, (at, gpus, run) in enumerate(jobs))
    return TraceReplay(trace, ClusterShape(2, 4), how)


@pytest.mark.parametrize("how", [Settings(interval_s=10.0), MuriOptions()])
@settings(max_examples=25)
@given(jobs=_JOBS, policy=st.sampled_from(["srtf", "srsf", "tiresias"]))
def test_gpus_of_the_cluster_are_held_by_jobs(
    how: Settings | MuriOptions, jobs: list[tuple[int, int, int]], policy: str
) -> None:
    outcome = replay(jobs, how).under(policy)
    found = measure(outcome)
    assert found.jobs == found.completed == len(jobs)
    # Nobody shares, so what the cluster says and what the jobs say must agree.
    assert found.held_gpu_h == pytest.approx(sum(job.gpus * job.held_s for job in outcome.jobs) / 3600)
    assert found.wasted_gpu_h is not None
    assert found.wasted_gpu_h >= -1e-9
    assert found.gpu_utilisation is not None
    assert 0 < found.gpu_utilisation <= 1 + 1e-9
    assert found.fragmentation is None or -1e-9 <= found.fragmentation <= 1 + 1e-9


def test_progress_is_reported() -> None:
    reports: list[tuple[int, int]] = []
    replay([(0, 1, 10), (0, 1, 20)], Settings()).under("fifo", lambda ended, jobs: reports.append((ended, jobs)))
    assert reports[-1] == (2, 2)


@pytest.mark.parametrize(("how", "name"), [(Settings(), "slurm"), (MuriOptions(), "muri")])
def test_conventions_have_names_and_policies_of_their_own(how: Settings | MuriOptions, name: str) -> None:
    asked = replay([(0, 1, 10)], how)
    assert asked.conventions == name
    asked.check("srsf")
    with pytest.raises(PolicyError, match="unknown policy 'srfs'"):
        asked.check("srfs")
    with pytest.raises(PolicyError, match="unknown policy 'srfs'"):
        asked.under("srfs")


def started(jobs: list[TraceJob], policy: str, how: Settings) -> list[int]:
    """Job ids in the order in which they start on one GPU."""
    outcome = TraceReplay(Trace.of(jobs), ClusterShape(1, 1), how).under(policy)
    return [record.job_id for record in sorted(outcome.jobs, key=lambda record: record.start_s)]


LENGTHS_S = (300.0, 100.0, 200.0)
UNLIMITED = [TraceJob(n + 1, 1.0 + n, 1, run_s) for n, run_s in enumerate(LENGTHS_S)]
LIMITED = [TraceJob(n + 1, 1.0 + n, 1, run_s, time_limit_s=run_s) for n, run_s in enumerate(LENGTHS_S)]
LATER = Settings(interval_s=10.0)
EXACT = Settings(interval_s=10.0, estimates=Estimates.parse("exact"))


@pytest.mark.parametrize("policy", ["srtf", "srsf", "muri-s", "sjf-ffs", "sjf-bsbf"])
def test_without_run_times_jobs_start_in_order_of_submission(policy: str) -> None:
    waiting = [TraceJob(9, 0.0, 1, 5.0), *UNLIMITED]
    assert started(waiting, policy, LATER) == [9, 1, 2, 3]
    assert started(waiting, policy, EXACT) == [9, 2, 3, 1]
    replay = TraceReplay(Trace.of(UNLIMITED), ClusterShape(1, 1), LATER)
    (warning,) = [text for text in replay.warnings([policy]) if "time limits" in text]
    assert warning.startswith(
        f"{policy}: no job has run-time estimates or time limits: jobs of unknown length come last"
    )
    assert not any(
        "time limits" in text for text in TraceReplay(replay.trace, replay.cluster, EXACT).warnings([policy])
    )


def test_without_learning_curves_explsched_is_srsf_and_slaq_keeps_the_order_of_submission() -> None:
    waiting = [TraceJob(9, 0.0, 1, 5.0, time_limit_s=5.0), *LIMITED]
    assert started(waiting, "srsf", LATER) == [9, 2, 3, 1]
    assert started(waiting, "explsched", LATER) == [9, 2, 3, 1]
    assert started(waiting, "slaq", LATER) == [9, 1, 2, 3]
    assert TraceReplay(Trace.of(waiting), ClusterShape(1, 1), LATER).warnings(["srsf", "explsched", "slaq"]) == (
        "explsched: no job has learning curves: jobs that report nothing are ordered as by srsf",
        "slaq: no job has learning curves: jobs that report nothing keep their order of submission",
    )


def test_a_warning_counts_the_jobs_and_names_every_policy_that_it_is_for() -> None:
    stages = StageTimes(0.1, 0.2, 0.0)
    jobs = [replace(job, stages=stages if job.job_id == 1 else None) for job in LIMITED]
    replay = TraceReplay(Trace.of(jobs), ClusterShape(1, 1), LATER)
    assert replay.warnings(["fifo", "muri-s", "muri-l", "antman", "dilu"]) == (
        "muri-s, muri-l: 2 jobs have no stage times: jobs without them run alone",
        "antman: no job has opportunistic priority: all jobs are guaranteed, and none shares a GPU",
        "antman: 2 jobs have no stage times: an opportunistic job is taken to run half as fast beside another",
        "dilu: no job has requests for parts of GPUs: jobs that ask for whole GPUs share none",
    )
    assert TraceReplay(replay.trace, replay.cluster, MuriOptions()).warnings(["srtf", "muri-s"]) == (
        "muri-s: 2 jobs have no stage times: jobs without them run alone",
    )


def test_jobs_with_learning_curves_share_gpus_as_the_policy_has_it() -> None:
    """Under `antman` a guaranteed job is not slowed down by the opportunistic one beside it."""
    curve = Learning.of_epochs(np.array([1.0, 0.5]), 1, 300.0, 0.5, Exploration(sweep="s"))
    stages = StageTimes(0.3, 0.5, 0.2)
    jobs = Trace.of(
        TraceJob(n + 1, 0.0, 1, 300.0, iterations=300, stages=stages, priority=n, learning=curve) for n in range(2)
    )
    watched = TraceReplay(jobs, ClusterShape(1, 1), EXACT).under("antman")
    alone = simulate(jobs, ClusterShape(1, 1), built("antman"), EXACT)
    assert [job.end_s for job in watched.jobs] == [job.end_s for job in alone.jobs]
    assert watched.jobs[0].end_s == 300.0
