"""Which requeued jobs need not wait for as long as Slurm delays them."""

from __future__ import annotations

import pytest

from explsched.preemption_record import Interruption, PreemptionRecord
from slurm_plugin.observation.progress import JobProgress, Run
from slurm_plugin.observation.requeue_delay import LASTING_S, returns_at_once
from tests.slurm_kit import record

NOW_S = 10_000.0
REQUEUED = record(5, restarts=2, submit_s=NOW_S - 10, eligible_s=NOW_S + 111)


@pytest.mark.parametrize(("run", "expected"), [(0, False), (1, True)])
def test_a_job_that_the_daemon_has_requeued_returns_at_once(run: int, *, expected: bool) -> None:
    past = PreemptionRecord(0.0).plus(Interruption(run, NOW_S - 10, 4, 0.0, ""))
    assert returns_at_once(REQUEUED, past, JobProgress(), frozenset(), NOW_S) is expected


@pytest.mark.parametrize(("run", "length_s", "expected"), [(0, 900, False), (1, LASTING_S, True), (1, 30, False)])
def test_a_job_whose_last_run_lasted_by_its_own_report_returns_at_once(
    run: int, length_s: float, *, expected: bool
) -> None:
    told = JobProgress(runs=(Run(run, NOW_S - 1000, NOW_S - 1000 + length_s),))
    assert returns_at_once(REQUEUED, None, told, frozenset(), NOW_S) is expected
