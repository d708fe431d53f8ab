"""Early stop: only of jobs that consented, run, and have nothing left to learn even if one hopes for the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sched_policy.improvement import remaining_improvement
from sched_policy.model import Exploration, JobState, ProgressPoint
from simulation.primal_dual import MIN_REPORTS, EarlyStop, best_of_sweep
from tests.sched_policy.builders import EXPLORING, curve, job, running, snapshot

RULE = EarlyStop(0.02)
BEST = running(1, "n1", exploration=EXPLORING, total_steps=40, points=curve(0.1, 1.0, 1000))
CONVERGED = tuple(ProgressPoint(i, 100.0 * i, 0.1 + 0.9 * 0.3**i) for i in range(21))


def flat(value: float, reports: int = 20, noise: float = 0.0) -> tuple[ProgressPoint, ...]:
    """A curve that falls once and then goes up and down by `noise`."""
    return tuple(
        ProgressPoint(i, 100.0 * i, value + (0.5 if i == 1 else 0.0) + noise * (-1) ** i) for i in range(1, reports + 1)
    )


HOPELESS = running(2, "n1", exploration=EXPLORING, total_steps=40, points=flat(2.0))


def stopped(rule: EarlyStop, *jobs: Any) -> list[int]:
    return [stop.job_id for stop in rule.stops(snapshot(*jobs))]


def test_hopeless_jobs_stop_and_the_best_one_goes_on() -> None:
    assert stopped(RULE, BEST, HOPELESS) == [2]


@pytest.mark.parametrize(
    "fields",
    [
        {"exploration": replace(EXPLORING, may_stop=False)},
        {"exploration": None},
        {"exploration": replace(EXPLORING, sweep="of another kind")},  # it is the best of its own
        {"state": JobState.PENDING, "start_s": None, "allocation": ()},
        {"points": flat(2.0, MIN_REPORTS - 1)},
        {"points": flat(2.0, noise=0.1)},  # it may still improve by 2 % of the sweep, with luck by 10 %
        {"total_steps": 201},  # 20 of 201 steps are less than a tenth
    ],
)
def test_a_job_goes_on(fields: dict[str, Any]) -> None:
    assert stopped(RULE, BEST, replace(HOPELESS, **fields)) == []


def test_a_job_stops_after_so_many_reports_and_its_share_of_steps() -> None:
    assert stopped(RULE, BEST, replace(HOPELESS, points=flat(2.0, MIN_REPORTS))) == [2]
    assert stopped(RULE, BEST, replace(HOPELESS, total_steps=200)) == [2]
    assert stopped(EarlyStop(0.02, least_share=0.5), BEST, HOPELESS) == [2]
    assert stopped(EarlyStop(0.02, least_share=0.51), BEST, HOPELESS) == []


def test_a_threshold_of_zero_stops_nobody() -> None:
    assert stopped(EarlyStop(0.0), BEST, HOPELESS) == []


def test_a_leader_is_stopped_only_by_a_threshold_of_its_own() -> None:
    leader = running(1, "n1", exploration=EXPLORING, total_steps=40, points=CONVERGED)
    learning = running(2, "n1", exploration=EXPLORING, total_steps=40, points=curve(0.2, 0.5, 1000))
    assert stopped(RULE, leader, learning) == []
    (stop,) = EarlyStop(0.02, leader_threshold=0.02).stops(snapshot(leader, learning))
    assert stop.job_id == 1
    assert "behind" not in stop.reason


def test_a_job_of_no_sweep_is_never_stopped() -> None:
    """What it could be compared with is not known."""
    alone = Exploration(checkpoint_signal="USR1", may_stop=True)
    converged = running(1, "n1", exploration=alone, total_steps=40, points=CONVERGED)
    assert stopped(EarlyStop(0.02, leader_threshold=0.02), converged) == []


def test_a_sweep_with_nothing_measured_has_no_best_value() -> None:
    silent, best = job(1, exploration=EXPLORING), running(2, "n1", exploration=replace(EXPLORING, sweep="other"))
    known = remaining_improvement((silent, replace(best, points=curve(0.1, 1.0, 200))))
    assert best_of_sweep(known).tolist() == [np.inf, known.best[1]]
    assert known.measured.tolist() == [False, True]
