"""Traces of sweeps: curves, parameters, and rows that cannot be used."""

from __future__ import annotations

import pytest

from sched_policy.model import Direction, ProgressPoint
from simulation.traces.formats import read_any
from simulation.traces.learning import Learning
from tests.simulation.traces.formats.conftest import Writer

HEADER = "job_id,submit_s,gpus,run_s,sweep,curve,user,metric,direction,params\n"
CURVE = "0:0:3 5:60:2 10:110:1"


def learning(file: Writer, curve: str, run_s: float, more: str = ",,,") -> Learning:
    (job,) = read_any(file(f"{HEADER}1,0,1,{run_s},s,{curve},{more}\n")).jobs
    assert job.learning is not None
    return job.learning


def test_reports_come_at_their_own_times_and_steps(file: Writer) -> None:
    found = learning(file, CURVE, 110)
    assert (found.losses.tolist(), found.times_s.tolist(), found.total_steps) == ([3, 2, 1], [0, 60, 110], 10)
    points = (ProgressPoint(0, 0.0, 3.0), ProgressPoint(5, 120.0, 2.0))
    assert found.points_until(59, 2) == points[:1]
    assert found.points_until(60, 2) == points


def test_nothing_is_known_before_the_first_report(file: Writer) -> None:
    found = learning(file, "1:3600:0.5 2:7200:0.4", 7200)
    assert found.points_until(3599, 1) == ()
    assert found.gain(3599) == 0.0


def test_the_best_is_known_however_unevenly_reports_come(file: Writer) -> None:
    found = learning(file, "1:10:0.9 2:20:0.1 3:30:0.8 4:1000:0.5", 1000)
    assert found.best_of_sweep == 0.1
    assert found.points_until(20, 1)[-1] == ProgressPoint(2, 20.0, 0.1)


def test_a_curve_of_a_stopped_training_ends_early(file: Writer) -> None:
    found = learning(file, CURVE, 1100)
    assert found.total_steps == 100
    assert len(found.points_until(1100, 1)) == 3


def test_reports_after_the_end_do_not_come(file: Writer) -> None:
    found = learning(file, CURVE, 100)
    assert (found.losses.tolist(), found.best_of_sweep, found.total_steps) == ([3, 2], 2, 8)


def test_steps_that_are_all_zero_say_nothing_of_their_number(file: Writer) -> None:
    assert learning(file, "0:5:3 0:60:2", 110).total_steps is None


def test_a_curve_may_have_a_hundred_thousand_reports(file: Writer) -> None:
    curve = " ".join(f"{step}:{step * 0.5:.3f}:{1 / (step + 1)!r}" for step in range(100_000))
    assert len(learning(file, curve, 49_999.5).losses) == 100_000


def test_what_should_rise_is_negated(file: Writer) -> None:
    found = learning(file, CURVE, 110, "ada,acc,max,")
    assert found.losses.tolist() == [-3, -2, -1]
    assert (found.exploration.metric, found.exploration.direction) == ("acc", Direction.MIN)


def test_parameters_are_read(file: Writer) -> None:
    found = learning(file, CURVE, 110, 'ada,,,"{""width"": 64, ""amp"": true, ""opt"": ""sgd""}"')
    assert found.exploration.params == (("amp", True), ("opt", "sgd"), ("width", 64.0))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,0,1,10,s,1:1:1,,,,", "curve: accepted: at least two reports"),
        ("1,0,1,10,s,1:5:1 2:4:1,,,,", "whose seconds do not fall"),
        ("1,0,1,10,s,1:15:1 2:20:1,,,,", "curve: its first report is after 15 s, accepted: up to run_s, 10 s"),
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
