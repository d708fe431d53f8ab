"""Our own format: what is written is read, and nothing else than `TraceError` comes of garbage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulation.traces.formats import own
from simulation.traces.trace import StageTimes, Trace, TraceError, TraceJob
from tests.simulation.traces.formats.conftest import Writer

_TIMES = st.floats(0, 1e10)
_RUNS = st.floats(0.001, 1e10)
_NAMES = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=20)
_STAGES = st.builds(StageTimes, _TIMES, st.floats(1e-9, 1e10), _TIMES)
_JOBS = st.builds(
    TraceJob,
    job_id=st.integers(0, 2**63 - 1),
    submit_s=_TIMES,
    gpus=st.integers(1, 1_000_000),
    run_s=_RUNS,
    iterations=st.floats(0, 1e15),
    stages=st.none() | _STAGES,
    declared_s=st.none() | _TIMES,
    time_limit_s=st.none() | _RUNS,
    model=_NAMES,
    user=_NAMES,
    queue=_NAMES,
    priority=st.integers(0, 1),
)
SLOW_FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SLOW_FILES
@given(st.lists(_JOBS, min_size=1, max_size=5, unique_by=lambda job: job.job_id))
def test_what_is_written_is_read(tmp_path: Path, jobs: list[TraceJob]) -> None:
    trace = Trace.of(jobs)
    own.write(trace, tmp_path / "trace.csv")
    assert own.read(tmp_path / "trace.csv") == trace


def test_optional_columns_may_be_missing_or_empty(file: Writer) -> None:
    full = own.read(
        file("run_s,gpus,submit_s,job_id,iterations,user,priority,time_limit_s,stage_io_s\n10, 2, 3.5,7, ,, ,, \n")
    )
    least = own.read(file("job_id,submit_s,gpus,run_s\n7,3.5,2,10\n"))
    assert full.jobs == least.jobs == (TraceJob(7, 3.5, 2, 10.0),)


def test_jobs_know_their_lines(file: Writer) -> None:
    trace = own.read(file("job_id,submit_s,gpus,run_s\n7,9,1,10\n8,1,1,10\n"))
    assert [(job.job_id, job.line) for job in trace.jobs] == [(8, 3), (7, 2)]


def test_an_unknown_column_is_an_error_with_the_nearest_known(file: Writer) -> None:
    with pytest.raises(TraceError, match="line 1: unknown column 'time_limit', the nearest known is time_limit_s"):
        own.read(file("job_id,submit_s,gpus,run_s,time_limit\n1,0,1,10,20\n"))


def test_a_missing_column_is_an_error_with_what_may_be_meant(file: Writer) -> None:
    with pytest.raises(TraceError, match=r"lacks gpus \(is gpu meant to be gpus\?\)"):
        own.read(file("job_id,submit_s,gpu,run_s\n1,0,1,10\n"))


@pytest.mark.parametrize(
    ("column", "text", "accepted"),
    [
        ("job_id", "-1", "whole numbers from 0"),
        ("job_id", "1.5", "whole numbers"),
        ("job_id", "9007199254740993.0", "whole numbers"),
        ("job_id", "9" * 5000, "whole numbers"),
        ("job_id", "", "whole numbers"),
        ("submit_s", "-0.1", "numbers from 0"),
        ("submit_s", "nan", "numbers from 0"),
        ("submit_s", "inf", "numbers from 0"),
        ("submit_s", "1e11", "numbers from 0 to 10,000,000,000"),
        ("submit_s", "1_000", "numbers from 0"),
        ("submit_s", "\uff11", "numbers from 0"),
        ("gpus", "0", "whole numbers from 1"),
        ("gpus", "-2", "whole numbers from 1"),
        ("gpus", "two", "whole numbers from 1"),
        ("gpus", "1000001", "to 1,000,000"),
        ("gpus", "1_0", "whole numbers from 1"),
        ("run_s", "0", "numbers from 0.001"),
        ("run_s", "-5", "numbers from 0.001"),
        ("run_s", "1e400", "numbers from 0.001"),
        ("iterations", "-1", "numbers from 0"),
        ("stage_net_s", "-1", "numbers from 0"),
        ("declared_s", "soon", "numbers from 0"),
        ("time_limit_s", "0", "numbers from 0.001"),
        ("priority", "2", "whole numbers from 0 to 1"),
    ],
)
def test_a_cell_that_cannot_be_used_is_named(file: Writer, column: str, text: str, accepted: str) -> None:
    cells = {"job_id": "1", "submit_s": "0", "gpus": "1", "run_s": "10", "stage_io_s": "1", "stage_gpu_s": "1"}
    cells["stage_net_s"] = "0"
    good = own.read(file(",".join(cells) + "\n" + ",".join(cells.values()) + "\n"))
    assert len(good.jobs) == 1
    cells[column] = text
    content = ",".join(cells) + "\n" + ",".join(cells.values()) + "\n"
    with pytest.raises(TraceError) as caught:
        own.read(file(content))
    assert "line 2: " in str(caught.value)
    assert column in str(caught.value)
    assert accepted in str(caught.value)


def test_some_stage_times_are_not_enough(file: Writer) -> None:
    with pytest.raises(TraceError, match="line 2: stage_gpu_s, stage_net_s: found nothing, .* all three stage times"):
        own.read(file("job_id,submit_s,gpus,run_s,stage_io_s\n1,0,1,10,0.5\n"))


def test_stages_that_take_no_time_cannot_be_interleaved(file: Writer) -> None:
    with pytest.raises(TraceError, match=r"line 2: stage_io_s, .*: found '0, 0.0, 0', accepted: a stage that takes"):
        own.read(file("job_id,submit_s,gpus,run_s,stage_io_s,stage_gpu_s,stage_net_s\n1,0,1,10,0,0.0,0\n"))


def test_the_second_of_two_equal_ids_is_rejected(file: Writer) -> None:
    trace = own.read(file("job_id,submit_s,gpus,run_s\n5,9,1,10\n5,1,2,20\n6,1,1,1\n"))
    assert [(job.job_id, job.gpus) for job in trace.jobs] == [(6, 1), (5, 1)]
    assert [(row.line, row.reason) for row in trace.rejected] == [(3, "job_id: 5 is already on line 2")]


def test_rejected_rows_are_in_order_of_lines(file: Writer) -> None:
    trace = own.read(file("job_id,submit_s,gpus,run_s\n5,0,1,10\n5,0,1,10\n6,0,0,1\n5,0,1,10\n"))
    assert [row.line for row in trace.rejected] == [3, 4, 5]


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    trace = Trace.of([TraceJob(1, 0.0, 1, 1.0)])
    with pytest.raises(TraceError, match=r"no/such.csv: cannot be written: No such file"):
        own.write(trace, tmp_path / "no" / "such.csv")
    with pytest.raises(TraceError, match="cannot be written"):
        own.write(trace, tmp_path)
    for user in ("a\rb", "\ud800", "a" * 257):
        with pytest.raises(TraceError, match="job 1: user: found '"):
            own.write(Trace.of([TraceJob(1, 0.0, 1, 1.0, user=user)]), tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("precious")
    with pytest.raises(TraceError):
        own.write(Trace.of([TraceJob(1, 0.0, 1, 1.0, user="\ud800")]), path)
    assert path.read_text() == "precious"
