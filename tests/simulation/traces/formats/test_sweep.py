"""Traces of sweeps: curves at even intervals, parameters, and rows that cannot be used."""

from __future__ import annotations

import pytest

from sched_policy.model import Direction
from simulation.traces.formats import read_any
from simulation.traces.learning import Learning
from tests.simulation.traces.formats.conftest import Writer

HEADER = "job_id,submit_s,gpus,run_s,sweep,curve,user,metric,direction,params\n"
CURVE = "0:0:3 5:60:2 10:110:1"


def learning(file: Writer, curve: str, run_s: float, more: str = ",,,") -> Learning:
    (job,) = read_any(file(f"{HEADER}1,0,1,{run_s},s,{curve},{more}\n")).jobs
    assert job.learning is not None
    return job.learning


def test_the_newest_report_counts_at_even_intervals(file: Writer) -> None:
    found = learning(file, CURVE, 110)
    assert (found.losses.tolist(), found.epochs, found.epoch_s) == ([3, 3, 1], 2, 55.0)
    assert [point.value for point in found.points_until(60, 1)] == [3, 3]


def test_a_curve_of_a_stopped_training_ends_early(file: Writer) -> None:
    found = learning(file, CURVE, 1100)
    assert (len(found.losses), found.epochs, found.epoch_s) == (3, 20, 55.0)
    assert len(found.points_until(1100, 1)) == 3


def test_a_curve_may_have_a_hundred_thousand_reports(file: Writer) -> None:
    curve = " ".join(f"{step}:{step * 0.5:.3f}:{1 / (step + 1)!r}" for step in range(100_000))
    assert len(learning(file, curve, 49_999.5).losses) == 100_000


def test_what_should_rise_is_negated(file: Writer) -> None:
    found = learning(file, CURVE, 110, "ada,acc,max,")
    assert found.losses.tolist() == [-3, -3, -1]
    assert (found.exploration.metric, found.exploration.direction) == ("acc", Direction.MIN)


def test_parameters_are_read(file: Writer) -> None:
    found = learning(file, CURVE, 110, 'ada,,,"{""width"": 64, ""amp"": true, ""opt"": ""sgd""}"')
    assert found.exploration.params == (("amp", True), ("opt", "sgd"), ("width", 64.0))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,0,1,10,s,1:1:1,,,,", "curve: accepted: at least two reports"),
        ("1,0,1,10,s,1:5:1 2:4:1,,,,", "whose seconds do not fall"),
        ("1,0,1,10,s,1:5:nan 2:6:1,,,,", "curve: found 'nan'"),
        ("1,0,1,10,s,1:5:1 2:6,,,,", "curve: found '2:6', accepted: step:seconds:value"),
        ("1,0,1,10,s,1:5:1 2:6:1,,,up,", "direction: found 'up', accepted: min, max"),
        ("1,0,1,10,s,1:5:1 2:6:1,,,,[1]", "params: found '[1]', accepted: a JSON object"),
        ("1,0,1,10,s,1:5:1 2:6:1,,,,{", "params: found '{', accepted: a JSON object"),
        pytest.param('1,0,1,10,s,1:5:1 2:6:1,,,,"{""a"":1' + "0" * 400 + '}"', "params: found", id="a huge number"),
        pytest.param('1,0,1,10,s,1:5:1 2:6:1,,,,"{""a"":1e999}"', "params: found", id="an infinite number"),
        pytest.param("1,0,1,10,s,1:5:1 2:6:1,,,," + "[" * 3000, "params: found", id="deeply nested"),
        ("1,0,1,0,s,1:5:1 2:6:1,,,,", "run_s: found '0'"),
    ],
)
def test_rows_that_cannot_be_used_are_named(file: Writer, row: str, words: str) -> None:
    trace = read_any(file(f"{HEADER}{row}\n2,0,1,10,s,{CURVE},,,,\n"))
    assert [job.job_id for job in trace.jobs] == [2]
    assert words in trace.rejected[0].reason
