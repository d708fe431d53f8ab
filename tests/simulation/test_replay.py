"""Both conventions behind one door, and what the figures of any replay must satisfy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explsched.errors import PolicyError
from simulation.cluster.settings import Settings
from simulation.muri import MuriOptions
from simulation.replay import TraceReplay
from simulation.results.metrics import measure
from simulation.traces.trace import ClusterShape, Trace, TraceJob

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


def test_progress_is_told_where_it_is_known() -> None:
    told: list[tuple[int, int]] = []
    replay([(0, 1, 10), (0, 1, 20)], Settings()).under("fifo", lambda ended, jobs: told.append((ended, jobs)))
    assert told[-1] == (2, 2)


@pytest.mark.parametrize(("how", "name"), [(Settings(), "slurm"), (MuriOptions(), "muri")])
def test_conventions_have_names_and_policies_of_their_own(how: Settings | MuriOptions, name: str) -> None:
    asked = replay([(0, 1, 10)], how)
    assert asked.conventions == name
    asked.check("srsf")
    with pytest.raises(PolicyError, match="unknown policy 'srfs'"):
        asked.check("srfs")
    with pytest.raises(PolicyError, match="unknown policy 'srfs'"):
        asked.under("srfs")
