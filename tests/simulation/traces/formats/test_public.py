"""The two public formats, from small inputs of our own."""

from __future__ import annotations

import pytest

from simulation.traces.formats import public
from simulation.traces.trace import StageTimes, TraceError, TraceJob
from tests.simulation.traces.formats.conftest import Writer

MURI_HEADER = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\n"
)
MURI_ROW = "7,8,1500,1000,gpt2,4,500000,91000,437,0.6,419,49,1\n"
PHILLY_HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def test_muri_is_read_in_seconds_without_the_originals_factor(file: Writer) -> None:
    trace = public.MURI.read(file(MURI_HEADER + MURI_ROW))
    assert trace.jobs == (
        TraceJob(
            7, 1.5, 8, 437.0, iterations=1000.0, stages=StageTimes(0.0006, 0.419, 0.049), declared_s=500.0,
            model="gpt2", priority=1,
        ),
    )  # fmt: skip
    assert trace.source_format == "muri"


def test_muri_columns_may_stand_in_any_order_and_three_may_be_missing(file: Writer) -> None:
    header = "resource_time_2,resource_time_1,resource_time_0,iteration_time,iterations,submit_time,num_gpu,job_id\n"
    (job,) = public.MURI.read(file(header + "3,2,1,10,100,0,4,5\n")).jobs
    assert job == TraceJob(5, 0.0, 4, 1.0, iterations=100.0, stages=StageTimes(0.001, 0.002, 0.003))


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [
        ("job_id", "-1", "job_id: found '-1', accepted: whole numbers from 0"),
        ("num_gpu", "0", "num_gpu: found '0', accepted: whole numbers from 1"),
        ("num_gpu", "1.5", "num_gpu: found '1.5'"),
        ("submit_time", "-1", "submit_time: found '-1'"),
        ("iterations", "0", "iterations: found '0', accepted: numbers from 1"),
        ("iterations", "1e15", "iterations: x iteration_time is 4.37e.14 s, accepted: 0.001 to"),
        ("iteration_time", "nan", "iteration_time: found 'nan'"),
        ("iteration_time", "0", "iteration_time: found '0'"),
        ("iteration_time", "0.0001", "iterations: x iteration_time is 0.0001 s"),
        ("resource_time_1", "inf", "resource_time_1: found 'inf'"),
        ("duration", "-1", "duration: found '-1'"),
        ("priority", "2", "priority: found '2', accepted: whole numbers from 0 to 1"),
    ],
)
def test_a_muri_cell_that_cannot_be_used_is_named(file: Writer, column: str, text: str, words: str) -> None:
    cells = dict(zip(MURI_HEADER.strip().split(","), MURI_ROW.strip().split(","), strict=True))
    cells[column] = text
    trace = public.MURI.read(file(MURI_HEADER + MURI_ROW.replace("7,", "1,", 1) + ",".join(cells.values()) + "\n"))
    assert len(trace.jobs) == 1
    (rejected,) = trace.rejected
    assert rejected.line == 3
    with pytest.raises(TraceError, match=words):
        raise TraceError(rejected.reason)


def test_philly_counts_from_the_earliest_row_wherever_it_stands(file: Writer) -> None:
    rows = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-08 07:01:54,10,8,80,6214e9\n\n"
    trace = public.PHILLY.read(file(PHILLY_HEADER + rows))
    assert trace.jobs == (
        TraceJob(3, 0.0, 8, 10.0, queue="6214e9"),
        TraceJob(2, 86401.0, 1, 66.0, queue="11cb48"),
    )
    assert (trace.rejected, trace.source_format) == ((), "philly")


def test_the_earliest_row_counts_only_if_it_can_be_used(file: Writer) -> None:
    rows = "2017-10-09 07:01:55,66.0,1,66.0,a\n2016-10-08 07:01:54,10,0,0,b\n"
    assert [job.submit_s for job in public.PHILLY.read(file(PHILLY_HEADER + rows)).jobs] == [0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2017-10-09,66,1,66,a", "timestamp: found '2017-10-09', accepted: times such as"),
        ("2017-13-09 07:01:55,66,1,66,a", "timestamp: found"),
        ("2017-10-09T07:01+01,66,1,66,a", "timestamp: found"),
        ("2017-W41-1 07:01:55,66,1,66,a", "timestamp: found"),
        ("2017-10-09 07:01:55,-1,1,-1,a", "duration: found '-1'"),
        ("2017-10-09 07:01:55,0,1,0,a", "duration: found '0', accepted: numbers from 0.001"),
        ("2017-10-09 07:01:55,66,,66,a", "num_gpus: found ''"),
        ("2017-10-09 07:01:55,66,1,66", "row: found 4 fields, accepted: 5"),
    ],
)
def test_a_philly_row_that_cannot_be_used_is_named(file: Writer, row: str, words: str) -> None:
    trace = public.PHILLY.read(file(PHILLY_HEADER + "2017-10-09 07:01:55,66,1,66,a\n" + row + "\n"))
    assert len(trace.jobs) == 1
    with pytest.raises(TraceError, match=words):
        raise TraceError(trace.rejected[0].reason)
