"""Lines of progress files are written by users: nothing in them is trusted beyond its form."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sched_policy.model import StageProfile
from slurm_plugin.observation.progress import (
    MAX_LINE_BYTES,
    MAX_METRICS,
    MAX_PARAMETERS,
    MAX_REPORTS,
    MAX_RUNS,
    JobProgress,
    ProgressReport,
    fold,
)

NOW_S = 1_000_000.0


def line(step: int, value: float, **more: object) -> str:
    return json.dumps({"time_s": NOW_S - 100 + step, "step": step, "metric": "loss", "value": value} | more) + "\n"


def after(*lines: str) -> JobProgress:
    """The progress of a job that has reported these."""
    return fold(JobProgress(), [text.rstrip("\n").encode() for text in lines], NOW_S)


@pytest.mark.parametrize(
    "bad",
    [
        b"not json",
        b'{"time_s": 1}',
        b"[1, 2]",
        b"\x00\xff\xfe",
        b'{"time_s": 1, "step": 3, "metric": "loss", "value": NaN}',
        b'{"time_s": 1, "step": 3, "metric": "loss", "value": null}',
        b'{"time_s": 1, "step": 3, "metric": "loss", "value": null, "bad": "odd"}',
        b'{"time_s": 1, "step": 3, "metric": "loss", "value": 1e999}',
        b'{"time_s": 1, "step": -3, "metric": "loss", "value": 1}',
        b'{"time_s": 1, "step": "3", "metric": "loss", "value": 1}',
        b'{"time_s": 9e9, "step": 3, "metric": "loss", "value": 1}',
        b'{"time_s": 1, "event": "explode"}',
        b'{"time_s": 1, "step": 3, "value": 1, "x": ' + b"[" * 1900 + b"]" * 1900 + b"}",
        b'{"time_s": 1, "step": 3, "metric": "' + b"x" * MAX_LINE_BYTES + b'", "value": 1}',
        b"",
    ],
)
def test_malformed_lines_are_counted_and_skipped(bad: bytes) -> None:
    progress = fold(JobProgress(), [line(1, 2.0).encode(), bad, line(2, 1.0).encode()], NOW_S)
    assert [r.step for r in progress.reports] == [1, 2]
    assert progress.malformed == 1


def no_number(step: int, word: str = "nan", **more: object) -> str:
    return json.dumps(json.loads(line(step, 0.0)) | {"value": None, "bad": word} | more)


def test_reports_of_nan_are_kept_and_counted_apart() -> None:
    """A sweep's strategy must see how far a diverged training is."""
    progress = after(line(1, 2.0), no_number(2), no_number(3, "inf"), line(4, 1.0), no_number(5, "-inf"), no_number(4))
    assert [r.step for r in progress.reports] == [1, 2, 3, 4, 5]
    assert [math.isfinite(r.value) for r in progress.reports] == [True, False, False, True, False]
    assert (progress.not_finite, progress.malformed) == (3, 1)
    assert fold(progress, [no_number(6).encode()], NOW_S).not_finite == 4


def test_the_best_is_kept_among_many_reports_of_nan() -> None:
    diverged = (no_number(step, time_s=NOW_S) for step in range(4, 1500))
    progress = after(line(1, 2.0), line(2, 0.5), line(3, 1.0), *diverged)
    assert len(progress.reports) <= MAX_REPORTS
    assert {0.5, 2.0} <= {report.value for report in progress.reports}
    assert all(not math.isfinite(report.value) for report in progress.reports[-3:])


def test_steps_going_backwards_are_refused_within_a_run_only() -> None:
    progress = after(line(5, 2.0), line(4, 1.0), line(3, 1.0, restart=1))
    assert [(r.restart, r.step) for r in progress.reports] == [(0, 5), (1, 3)]
    assert progress.malformed == 1


@pytest.mark.parametrize("at_once", [1, 3, 100, 3000])
def test_each_metric_keeps_its_best_and_its_share_when_reports_are_thinned(at_once: int) -> None:
    """`report(step=step, loss=loss, accuracy=accuracy)` writes them in turn."""
    best = {"loss": 0.1, "accuracy": 0.9}
    lines = [
        line(step, best[metric] if step == 400 else 0.5, metric=metric).encode()
        for step in range(1500)
        for metric in best
    ]
    progress = JobProgress()
    for start in range(0, len(lines), at_once):
        progress = fold(progress, lines[start : start + at_once], NOW_S + 2000)
        assert len(progress.reports) <= MAX_REPORTS
    for metric, value in best.items():
        own = [report for report in progress.reports if report.metric == metric]
        assert (own[0].step, own[-1].step) == (0, 1499)
        assert value in {report.value for report in own}
        assert len(own) >= 100


def test_of_more_metrics_than_the_limit_the_first_are_kept() -> None:
    """The others are no malformed lines, of which a file may not have too many."""
    lines = [line(step, 1.0, metric=f"m{number}") for step in range(40) for number in range(MAX_METRICS + 10)]
    progress = after(*lines)
    assert {report.metric for report in progress.reports} == {f"m{number}" for number in range(MAX_METRICS)}
    assert progress.malformed == 0
    assert len(progress.reports) <= MAX_REPORTS


def test_the_name_of_a_metric_is_kept_once_for_all_its_reports() -> None:
    """A user's ten thousand jobs with long names would take twice the memory."""
    progress = JobProgress()
    for step in range(3):
        progress = fold(progress, [line(step, 1.0, metric=name * 100).encode() for name in "ab"], NOW_S)
    assert len({id(report.metric) for report in progress.reports}) == 2


def test_run_time_adds_up_over_requeues() -> None:
    lines = [
        {"time_s": 100.0, "event": "start"},
        {"time_s": 150.0, "step": 5, "value": 1.0},
        {"time_s": 500.0, "restart": 1, "event": "start"},
        {"time_s": 530.0, "restart": 1, "step": 8, "value": 0.5},
    ]
    progress = after(*map(json.dumps, lines))
    assert progress.run_s([ProgressReport(530.0, 1, 5, "loss", 1.0)]) == [80.0]


START = b'{"time_s": 999995, "event": "start"}'


@pytest.mark.parametrize("begins", [(START,), (line(1, 3.0).encode(),)])
def test_what_comes_before_a_run_that_begins_after_a_later_one_is_a_former_jobs(begins: tuple[bytes, ...]) -> None:
    """A requeued job whose first submission nobody knows may have the number of one that slurmctld has forgotten."""
    former = after(
        line(5, 2.0, total_steps=9), line(6, 1.0, restart=1), '{"time_s": 999910, "event": "end", "status": 0}'
    )
    lines = [*begins, line(2, 2.5).encode(), line(3, 2.0, restart=1).encode()]
    expected = fold(JobProgress(), lines, NOW_S)
    assert fold(former, lines, NOW_S) == expected
    assert [run.restart for run in expected.runs] == [0, 1]
    for one in lines:
        former = fold(former, [one], NOW_S)
    assert former == expected


def test_a_process_that_outlives_its_run_makes_no_other_job_of_it() -> None:
    """On a node that Slurm has lost it goes on beside the next run."""
    progress = after(line(5, 2.0), line(6, 1.0, restart=1), line(6, 1.5), line(7, 0.9, restart=1))
    assert [(report.restart, report.step) for report in progress.reports] == [(0, 5), (1, 6), (0, 6), (1, 7)]
    events = b'{"time_s": 999996, "event": "checkpoint"}', b'{"time_s": 999997, "event": "end", "status": 1}'
    after_events = fold(progress, [*events], NOW_S)
    assert (after_events.ended, after_events.exit_status, after_events.checkpoint_s) == (False, None, None)
    assert after_events.reports == progress.reports


def test_a_job_whose_later_run_reported_since_its_first_submission_is_no_former_job() -> None:
    """A script that outlives its run may begin its next command."""
    progress = after(line(5, 2.0), line(6, 1.0, restart=1))
    assert fold(progress, [START], NOW_S, submitted_s=NOW_S - 500).reports == progress.reports
    assert fold(progress, [START], NOW_S).reports == ()


def test_a_job_with_the_id_of_one_that_ended_a_minute_before_has_none_of_its_reports() -> None:
    """Times alone do not tell the two apart: a clock may be so far behind."""
    former = after(line(40, 1.0), line(50, 1.0, restart=1))
    own = [START, line(96, 9.0).encode(), b'{"time_s": 999997, "event": "end", "status": 1}']
    expected = fold(JobProgress(), own, NOW_S, submitted_s=NOW_S - 10)
    assert fold(former, own, NOW_S, submitted_s=NOW_S - 10) == expected
    assert (expected.exit_status, [report.step for report in expected.reports]) == (1, [96])


def test_runs_beyond_any_jobs_are_counted_not_kept() -> None:
    """Each would cost memory for good, and time with each report in each pass."""
    lines = [line(1, 1.0, restart=run, time_s=float(run)) for run in range(MAX_RUNS + 500)]
    progress = after(*lines)
    assert (len(progress.runs), progress.malformed) == (MAX_RUNS, 500)
    assert len(progress.points("loss", 1)) <= MAX_REPORTS


def test_runs_of_other_sizes_count_with_theirs() -> None:
    lines = [line(0, 3.0), line(10, 2.0), line(50, 1.0, restart=1), line(60, 0.5, restart=1)]
    progress = after(*lines)
    assert [point.gpu_s for point in progress.points("loss", 4)] == [0, 40, 40, 80]
    assert [point.gpu_s for point in progress.points("loss", 4, ((0, 1),))] == [0, 10, 10, 50]


def test_events() -> None:
    events = [b'{"time_s": 1, "event": "start"}', b'{"time_s": 2, "event": "checkpoint", "step": 3}']
    progress = fold(JobProgress(), events, NOW_S)
    assert progress.checkpoint_s == 2
    assert not progress.ended
    ended = fold(progress, [b'{"time_s": 3, "event": "end"}'], NOW_S)
    assert ended.ended
    # Somebody has put it back to the queue, or its script begins another command: it may be preempted again.
    for goes_on in (b'"event": "start"', b'"restart": 1, "event": "start"', b'"restart": 1, "step": 1, "value": 1'):
        assert not fold(ended, [b'{"time_s": 4, %s}' % goes_on], NOW_S).ended
    failed = fold(progress, [b'{"time_s": 3, "event": "end", "status": 7}'], NOW_S)
    assert (failed.ended, failed.exit_status) == (True, 7)
    assert fold(failed, [b'{"time_s": 4, "restart": 1, "event": "start"}'], NOW_S).exit_status is None


def test_what_a_run_has_told_of_its_script_counts_until_it_tells_otherwise() -> None:
    start = b'{"time_s": 1, "event": "start", "script_dies": true}'
    told = fold(JobProgress(), [start, b'{"time_s": 2, "event": "start"}', b'{"time_s": 3, "event": "end"}'], NOW_S)
    assert told.script_dies
    assert fold(told, [b'{"time_s": 4, "restart": 1, "event": "start"}'], NOW_S).script_dies
    assert not fold(told, [b'{"time_s": 4, "event": "start", "script_dies": false}'], NOW_S).script_dies


def test_a_training_without_sxrun_tells_of_its_script_with_parameters_of_which_there_are_none() -> None:
    """A daemon of before, which does not know the key, takes such a line for what it is without."""
    lines = [b'{"time_s": 1, "params": {"lr": 1}}', b'{"time_s": 2, "params": {}, "script_dies": true}']
    told = fold(JobProgress(), [*lines, b'{"time_s": 3, "step": 1, "value": 1}'], NOW_S)
    assert (told.script_dies, told.malformed, len(told.reports), told.parameters.values) == (True, 0, 1, {"lr": 1})
    assert not told.runs[0].under_sxrun
    of_later_run = fold(told, [b'{"time_s": 4, "restart": 1, "params": {}, "script_dies": false}'], NOW_S)
    assert not of_later_run.script_dies
    assert (of_later_run.parameters.values, of_later_run.parameters.changed) == ({"lr": 1}, frozenset())
    assert not fold(of_later_run, [b'{"time_s": 5, "params": {}, "script_dies": true}'], NOW_S).script_dies


@pytest.mark.parametrize("reported", [b'"step": 60, "value": 1', b'"step": 4, "metric": "accuracy", "value": 1'])
def test_of_two_commands_at_once_one_goes_on_when_the_other_has_ended(reported: bytes) -> None:
    """And may be preempted. An earlier run's process that Slurm has lost shows nothing of this one."""
    both = [
        b'{"time_s": 1, "event": "start"}',
        b'{"time_s": 2, "event": "start"}',
        b'{"time_s": 3, "step": 50, "value": 1}',
    ]
    ended = fold(JobProgress(), [*both, b'{"time_s": 4, "event": "end", "status": 0}'], NOW_S)
    assert ended.ended
    goes_on = fold(ended, [b'{"time_s": 5, %s}' % reported], NOW_S)
    assert (goes_on.ended, goes_on.exit_status) == (False, None)
    assert fold(goes_on, [b'{"time_s": 6, "event": "end", "status": 3}'], NOW_S).exit_status == 3
    again = fold(ended, [b'{"time_s": 5, "restart": 1, "event": "end", "status": 0}'], NOW_S)
    assert fold(again, [b'{"time_s": 6, %s}' % reported], NOW_S).ended


REFUSED = '"step": 4, "value": 1'


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("begun", [(0,), (0, 1), (0, 0)])
@pytest.mark.parametrize("reported", ['"step": 60, "value": 1', '"step": 4, "metric": "accuracy", "value": 1', REFUSED])
def test_what_reports_after_the_end_of_all_commands_does_not_take_it_back(
    reported: str, begun: tuple[int, ...], status: int
) -> None:
    """Such as an evaluation in the job's script. Nor does a report that is refused, while another command goes on."""
    run = begun[-1]
    start = [b'{"time_s": 1, "restart": %d, "event": "start"}' % restart for restart in begun]
    before = b'{"time_s": 2, "restart": %d, "step": 50, "value": 1}' % run
    end = b'{"time_s": 3, "restart": %d, "event": "end", "status": %d}' % (run, status)
    first = fold(JobProgress(), [*start, before, end], NOW_S)
    after = f'{{"time_s": 4, "restart": {run}, {reported}}}'.encode()
    goes_on = begun == (0, 0) and reported != REFUSED
    progress = fold(first, [after], NOW_S)
    assert (progress.ended, progress.exit_status) == ((False, None) if goes_on else (True, status))
    both = fold(first, [end, after], NOW_S)
    assert (both.ended, both.exit_status) == (True, status)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_survived(lines: list[bytes]) -> None:
    progress = fold(JobProgress(), lines, NOW_S)
    assert progress.malformed + len(progress.reports) <= len(lines)


def told(restart: int, **parameters: object) -> str:
    return json.dumps({"time_s": NOW_S - 50, "restart": restart, "params": parameters}) + "\n"


def test_parameters_of_the_last_run_count_and_differences_are_counted() -> None:
    lines = [told(0, lr=0.1, width=64, opt="sgd"), told(0, lr=0.2)]
    first = after(*lines).parameters
    assert (dict(first.values), first.changed) == ({"lr": 0.2, "width": 64.0, "opt": "sgd"}, frozenset())
    lines += [told(1, lr=0.1), told(1, lr=0.2)]  # a command line, and what the program made of it
    assert after(*lines).parameters.changed == frozenset()
    found = after(*lines, told(2, lr=0.3, opt=True), told(3, width=64), told(2, lr=9.0))
    assert dict(found.parameters.values) == {"lr": 0.3, "width": 64.0, "opt": True}
    assert (found.parameters.changed, found.malformed) == ({"lr", "opt"}, 1)


def test_parameters_beyond_the_limits_are_counted_not_kept() -> None:
    lines = [told(0, **{f"p{n}": n}) for n in range(MAX_PARAMETERS + 5)]
    strange = [told(0, x=[1]), told(0, x=None), told(0, x="y" * 999), told(0, **{"n" * 999: 1})]
    found = after(*lines, *strange)
    assert (len(found.parameters.values), found.malformed) == (MAX_PARAMETERS, 9)


def test_of_measured_stages_the_fastest_count_and_nonsense_is_skipped() -> None:
    measured = ("120/70/45/5", "110/60/45/5", "150/90/50/10", "0/1/1/1", "10/x/1/1")
    found = after(*(json.dumps({"time_s": NOW_S, "stages": stages}) for stages in measured))
    assert found.stages == StageProfile(0.110, 0.060, 0.045, 0.005)
    assert (found.malformed, found.reports) == (2, ())


def test_run_time_does_not_fall_where_a_clock_is_set_back() -> None:
    found = after(line(1, 3.0), line(21, 2.0), line(22, 1.0, time_s=NOW_S - 90.0))
    assert found.run_s(found.reports) == [0.0, 20.0, 20.0]
    assert [point.gpu_s for point in found.points("loss", 2)] == [0.0, 40.0, 40.0]
