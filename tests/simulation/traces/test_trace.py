"""A trace on a cluster, and its rejected rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.cli.trace import JobsOfSize, RejectedRows, summarize
from simulation.traces.trace import (
    ClusterShape,
    Rejected,
    StageTimes,
    Trace,
    TraceError,
    TraceJob,
    fit,
    require_all_rows,
)

TRACE = Trace.of(
    [TraceJob(1, 0.0, 8, 10.0, line=2), TraceJob(2, 5.0, 9, 10.0, line=4), TraceJob(3, 9.0, 100, 10.0, line=5)],
    [Rejected(3, "gpus: found '0'"), Rejected(9, "row: found 1 fields")],
    "own",
)


def test_jobs_larger_than_the_cluster_join_the_rejected_rows_in_order() -> None:
    fitted = fit(TRACE, ClusterShape(2, 4))
    assert [job.job_id for job in fitted.jobs] == [1]
    assert [row.line for row in fitted.rejected] == [3, 4, 5, 9]
    assert fitted.rejected[1].reason == "gpus: job 2 asks for 9, accepted: up to 8 (2 nodes with 4 GPUs)"
    assert fitted.source_format == "own"


def test_a_trace_that_fits_stays_as_it_is() -> None:
    assert fit(TRACE, ClusterShape(25, 4)) is TRACE


def test_require_all_rows_names_the_first_rejected_rows_and_counts_the_others() -> None:
    rejected = [Rejected(line, f"gpus: found '{line}'") for line in range(2, 2002)]
    with pytest.raises(TraceError) as caught:
        require_all_rows(Path("t.csv"), rejected)
    assert str(caught.value) == (
        "t.csv: 2,000 rows cannot be used: line 2: gpus: found '2'; line 3: gpus: found '3'; line 4: gpus: found '4'; "
        "and 1,997 more"
    )


def test_a_trace_without_rejected_rows_passes() -> None:
    require_all_rows(Path("t.csv"), ())


def test_the_summary_counts() -> None:
    jobs = [
        TraceJob(1, 100.0, 2, 30.0, user="a", queue="q", time_limit_s=60.0),
        TraceJob(2, 140.0, 4, 10.0, user="b", queue="q", stages=StageTimes(0.1, 0.2, 0.0)),
        TraceJob(3, 150.0, 2, 20.0),
    ]
    faults = [Rejected(3, "gpus: x"), Rejected(4, "run_s: x"), Rejected(5, "run_s: y")]
    summary = summarize(Trace.of(jobs, faults, "own"))
    assert (summary.jobs, summary.span_s, summary.work_gpu_s) == (3, 50.0, 140.0)
    assert summary.run is not None
    assert (summary.run.median_s, summary.run.mean_s, summary.run.max_s) == (20.0, 20.0, 30.0)
    assert summary.gpus == (JobsOfSize(2, 2), JobsOfSize(4, 1))
    assert (summary.users, summary.queues, summary.with_stages, summary.with_time_limit) == (2, 1, 1, 1)
    assert summary.rejected_by == (RejectedRows("run_s", 2), RejectedRows("gpus", 1))
    assert summary.load(ClusterShape(2, 2)) == pytest.approx(140 / (4 * 50))


def test_jobs_submitted_at_once_have_no_load() -> None:
    assert summarize(Trace.of([TraceJob(1, 5.0, 1, 1.0), TraceJob(2, 5.0, 1, 1.0)])).load(ClusterShape(1, 1)) is None


def test_an_empty_trace_has_a_summary() -> None:
    summary = summarize(Trace(()))
    assert (summary.jobs, summary.span_s, summary.run) == (0, 0.0, None)
