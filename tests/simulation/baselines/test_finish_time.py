"""Themis as an order: who has had the least of a fair share comes first."""

from __future__ import annotations

from simulation.finish_time import FinishTimeFair
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot


def ranked(*jobs: object) -> list[int]:
    return [score.job_id for score in FinishTimeFair().rank(snapshot(*jobs, on=nodes(1, 2)))]


def test_jobs_that_have_never_run_come_first() -> None:
    assert ranked(running(1, "n1", ran_s=10.0), job(2))[0] == 2


def test_of_equal_jobs_the_one_that_has_had_less_comes_first() -> None:
    jobs = [
        job(i, expected_s=4000.0 + earlier_s, earlier_s=earlier_s, submit_s=NOW_S - 5000)
        for i, earlier_s in ((1, 3000.0), (2, 1000.0), (3, 2000.0))
    ]
    assert ranked(*jobs) == [2, 3, 1]


def test_of_new_jobs_the_one_that_fairness_presses_most_gets_the_larger_share() -> None:
    # Three jobs of a GPU each on two GPUs; the one that has waited longest for little work is furthest behind.
    long_waiting = job(1, expected_s=1000.0, submit_s=NOW_S - 9000)
    fresh = [job(i, expected_s=1000.0, submit_s=NOW_S) for i in (2, 3)]
    assert ranked(*fresh, long_waiting)[0] == 1


def test_jobs_of_unknown_length_take_part() -> None:
    assert sorted(ranked(job(1, time_limit_s=None), job(2))) == [1, 2]
    assert ranked() == []
