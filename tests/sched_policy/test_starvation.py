"""No job waits for ever, whatever the policy: a stated bound, under a load that would starve it.

An overdue job starts at the latest when the jobs that run at the time it became overdue have ended by their limits.
"""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import Job, JobState
from sched_policy.snapshot import Snapshot
from tests.sched_policy.builders import EXPLORING, NOW_S, curve, job, nodes

MAX_WAIT_S = 1800.0
LIMIT_S = 300.0
STEP_S = 60.0
LATE_ID = 1
LATE = job(LATE_ID, 4, submit_s=NOW_S, time_limit_s=90_000.0)
"""The longest job and the largest gang, which reports nothing."""


def small(job_id: int, now_s: float) -> Job:
    """One GPU for a few minutes, and the best prospects."""
    reports = curve(0.1, 0.9, 600.0)
    return job(job_id, submit_s=now_s, time_limit_s=LIMIT_S, exploration=EXPLORING, points=reports, total_steps=100)


@pytest.mark.parametrize("name", catalog.POLICIES.names())
def test_a_flood_of_better_jobs_delays_an_overdue_job_by_a_bounded_time(name: str) -> None:
    policy = catalog.build(name)
    numbers = itertools.count(2)
    scope = "" if name in catalog.TAKES_TURNS else "ada"
    jobs = {LATE_ID: replace(LATE, scope=scope)}
    for step in range(200):
        now_s = NOW_S + step * STEP_S
        over = [one.job_id for one in jobs.values() if one.holds_gpus and one.end_s(now_s) <= now_s]
        for job_id in over:
            del jobs[job_id]
        for _ in range(4):  # there are always better ones, and their ends never fall together
            fresh = replace(small(next(numbers), now_s), scope=scope)
            jobs[fresh.job_id] = fresh
        is_overdue = now_s - LATE.submit_s > MAX_WAIT_S
        jobs[LATE_ID] = replace(jobs[LATE_ID], is_overdue=is_overdue)
        plan = checked_plan(policy, Snapshot.of(now_s, nodes(1), jobs.values()))
        for start in plan.starts:
            if start.job_id == LATE_ID:
                assert now_s <= LATE.submit_s + MAX_WAIT_S + LIMIT_S + 2 * STEP_S
                return
            jobs[start.job_id] = replace(
                jobs[start.job_id],
                state=JobState.RUNNING,
                start_s=now_s,
                first_report_s=now_s,
                allocation=start.placement,
                time_limit_s=LIMIT_S - STEP_S * (start.job_id % 3),
            )
    pytest.fail("it never started")
