"""Run times learnt from sacct's rows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from explsched.errors import SlurmError
from slurm_plugin.observation.history import Likeness
from slurm_plugin.observation.run_times import FIELDS, AccountedJob, LearntRunTimes, coverage, past_jobs
from tests.sched_policy.builders import NOW_S, job, running

ALIKE = Likeness(1, "main", "ada", "resnet-1")


def row(job_id: int, run_s: int, state: str = "COMPLETED", name: str = "resnet", gpus: int = 1) -> list[str]:
    tres = f"billing=1,cpu=1,gres/gpu={gpus},node=1"
    return [str(job_id), "ada", "main", str(1000 + job_id), str(2000 + job_id), str(run_s), state, tres, name]


def test_runs_of_one_job_are_its_run_time_and_only_jobs_that_held_gpus_and_ended_count() -> None:
    rows = [
        row(1, 100, "REQUEUED"),
        row(1, 50),
        row(2, 70, "CANCELLED by 0"),
        row(3, 10, "RUNNING"),
        row(4, 0, "CANCELLED"),
        row(5, 30, gpus=0),
        ["6", "torn"],
    ]
    found, left_out = past_jobs(rows)
    assert [(one.run_s, one.likeness.user, one.likeness.gpus) for one in found] == [(150.0, "ada", 1), (70.0, "ada", 1)]
    assert left_out == 1


def test_a_job_on_shards_has_one_gpu_as_it_has_while_it_waits() -> None:
    on_shards = [*row(1, 100)[:7], "billing=1,cpu=1,gres/shard=3,mem=1000M,node=1", "resnet"]
    found, left_out = past_jobs([on_shards])
    assert [(one.likeness.gpus, one.run_s) for one in found] == [(1, 100.0)]
    assert left_out == 0


class Accounting:
    """Sacct: gives rows, or refuses."""

    def __init__(self, *rows: list[str]) -> None:
        self.rows = list(rows)
        self.asked: list[tuple[float, float]] = []
        self.fault: SlurmError | None = None

    def __call__(self, fields: Sequence[str], since_s: float, until_s: float) -> list[list[str]]:
        assert tuple(fields) == FIELDS
        self.asked.append((since_s, until_s))
        if self.fault:
            raise self.fault
        return self.rows


class AtOnce(Executor):
    """Sacct has always answered by the next pass."""

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments, **named))
        except SlurmError as error:
            done.set_exception(error)
        return done


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.run_times.ThreadPoolExecutor", lambda *_, **_named: AtOnce())


def learnt(accounting: Accounting) -> LearntRunTimes:
    """Has read once."""
    source = LearntRunTimes(accounting, history_days=10, refresh_s=100)
    source.with_estimates([], NOW_S)
    return source


def test_jobs_get_the_run_time_of_those_like_them_within_their_limit() -> None:
    source = learnt(accounting := Accounting(*(row(n, 600) for n in range(20))))
    alike, other, going = (
        job(1, name="resnet"),
        job(2, gpus=8, name="resnet"),
        running(3, "n1", ran_s=300, name="resnet"),
    )
    brief = job(4, name="resnet", time_limit_s=60.0)
    found = {one.job_id: one.expected_s for one in source.with_estimates([alike, other, going, brief], NOW_S + 1)}
    assert found[1] == pytest.approx(600, rel=0.3)
    assert found[2] is None
    assert found[3] == pytest.approx(600, rel=0.3)
    assert found[4] == 60.0
    assert accounting.asked == [(NOW_S - 864_000, NOW_S)]


def test_a_job_that_ends_is_learnt_from_at_once() -> None:
    source = learnt(Accounting(*(row(n, 600) for n in range(20))))
    first, second = running(1, "n1", ran_s=5, name="new"), job(2, name="new")
    before = source.with_estimates([first, second], NOW_S + 1)[1].expected_s
    after = source.with_estimates([second], NOW_S + 2)[0].expected_s
    assert before is not None
    assert after is not None
    assert after < before / 2


def test_where_sacct_fails_jobs_keep_what_was_learnt_and_it_is_asked_again_later() -> None:
    source = learnt(accounting := Accounting(*(row(n, 600) for n in range(20))))
    one = job(1, name="resnet")
    expected_s = source.with_estimates([one], NOW_S + 1)[0].expected_s
    accounting.fault = SlurmError("slurmdbd is away")
    source.with_estimates([one], NOW_S + 101)
    assert source.with_estimates([one], NOW_S + 102)[0].expected_s == expected_s
    assert len(accounting.asked) == 2
    source.with_estimates([one], NOW_S + 202)
    assert len(accounting.asked) == 3


def test_coverage_judges_each_job_by_those_that_had_ended_before_it_was_submitted() -> None:
    # The second begins before the first has ended, so nothing is known of either; the others are as the first.
    past = [
        AccountedJob(ALIKE, 0.0, 100.0, 100.0),
        AccountedJob(ALIKE, 50.0, 150.0, 100.0),
        AccountedJob(ALIKE, 200.0, 320.0, 120.0),
    ]
    by_kind = {line.alike_in: line for line in coverage(past)}
    assert by_kind[""].jobs == 2
    assert by_kind[""].within_twice is None
    alike = by_kind["user, name and GPUs"]
    assert (alike.jobs, alike.share, alike.within_twice, alike.within_quantiles) == (1, 1 / 3, 1.0, 0.0)
    assert [line.jobs for line in coverage(past[2:], known=past[:2])] == [1]
