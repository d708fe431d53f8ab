"""The benchmark's live arm on a real cluster: jobs that end, and none lost."""

from pathlib import Path

import pytest

from benchmarks.live_replay import figures, live
from benchmarks.live_replay.workload import compressed
from simulation.traces.trace import Trace, TraceJob

pytestmark = pytest.mark.slurm

TRACE = Trace.of([TraceJob(1, 0.0, 32, 20.0), TraceJob(2, 5.0, 1, 5.0), TraceJob(3, 10.0, 8, 5.0)])


def test_every_job_of_a_replay_completes_under_the_daemon(place: Path) -> None:
    told: list[int] = []
    trace = compressed(TRACE, 3, 10.0, seed=1)
    arm = live.run(place, trace, live.daemon_settings("srsf"), 120.0, lambda ended, _total: told.append(ended))
    done = arm.jobs
    assert [each.job.job_id for each in done] == [1, 2, 3]
    assert figures.lost(done) == 0
    assert told[-1] == 3
    assert all(each.end_s is not None and each.end_s >= each.submit_s for each in done)
    assert arm.pass_times.policy_s
    assert arm.pass_times.backfill_s
    assert arm.pass_times.main_s
    assert not (place / "cluster" / "cluster.json").exists()
