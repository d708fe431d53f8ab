"""GPUs at a price: who is admitted, when, and in whose favour."""

import numpy as np
import pytest

from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import Exploration, Job, ProgressPoint
from sched_policy.plan import Plan
from simulation.primal_dual import PrimalDual, loss_reduction, timeliness
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot

HOUR_S = 3600.0


def order(*jobs: Job, rule: PrimalDual = PrimalDual()) -> list[int]:  # noqa: B008  it is frozen
    return rule.rank(snapshot(*jobs, on=nodes(1, 4))).job_ids


def plan(policy: str, *jobs: Job) -> Plan:
    return checked_plan(catalog.build(policy), snapshot(*jobs, on=nodes(1, 4)))


def learner(job_id: int, last: float) -> Job:
    """A job that has reported ten times, and now improves by `last` per report."""
    points = tuple(ProgressPoint(i, 60.0 * i, 10.0 - 5.0 * (1 - last**i)) for i in range(1, 11))
    return job(job_id, 4, points=points, exploration=Exploration(sweep="s"), total_steps=40, time_limit_s=HOUR_S)


def test_who_comes_first_gets_the_first_slots_while_all_are_alike() -> None:
    assert order(*(job(i, 4, time_limit_s=HOUR_S) for i in (1, 2, 3))) == [1, 2, 3]


def test_what_gains_more_per_gpu_pushes_out_what_gains_less() -> None:
    """Slots are full of a small job's plans: one that takes all GPUs for a day cannot pay what it would cost."""
    small = [job(i, 1, time_limit_s=HOUR_S) for i in range(1, 9)]
    large = job(9, 4, time_limit_s=24 * HOUR_S)
    ranking = PrimalDual().rank(snapshot(*small, large, on=nodes(1, 4)))
    assert ranking.job_ids[-1] == 9
    assert ranking.value_of[9] == 0
    assert "no plan of it pays" in next(score.reason for score in ranking if score.job_id == 9)
    alone = PrimalDual().rank(snapshot(large, on=nodes(1, 4)))
    assert alone.value_of[9] > 0


def test_explscheds_profit_is_what_is_left_to_learn_if_the_owner_lets_it() -> None:
    jobs = snapshot(learner(1, 0.01), learner(2, 0.9), job(3, 4, time_limit_s=HOUR_S), on=nodes(1, 4))
    learnt, learning, untold = loss_reduction(jobs, np.zeros((3, 1)))[:, 0]
    assert learnt < 0.05 < learning < untold == pytest.approx(0.7)


def test_oasis_prefers_who_can_still_be_in_time() -> None:
    fresh = [job(i, 1, submit_s=NOW_S - 60, time_limit_s=HOUR_S) for i in (2, 3, 4)]
    late = job(5, 1, submit_s=NOW_S - 30, time_limit_s=24 * HOUR_S)
    assert order(*fresh, late, rule=PrimalDual(timeliness))[-1] == 5
    profit = timeliness(snapshot(*fresh, on=nodes(1, 4)), np.array([[HOUR_S, 3 * HOUR_S]] * 3))
    assert (profit[:, 0] > 0.7).all()
    assert (profit[:, 1] < 0.3).all()


@pytest.mark.parametrize("policy", ["primal-dual", "oasis"])
def test_what_runs_keeps_its_gpus_and_free_ones_are_never_idle(policy: str) -> None:
    there = running(1, "n1", 2, time_limit_s=HOUR_S)
    made = plan(policy, there, job(2, 4), job(3, 2, time_limit_s=None))
    assert [start.job_id for start in made.starts] == [3]
    assert made.preemptions == ()


def test_prices_stay_numbers_where_nodes_have_gone_under_running_jobs() -> None:
    """Far more is promised than there is, and the profits are of very different sizes."""
    held = [running(i, "n1", 4, ran_s=40.0, time_limit_s=10.0) for i in range(1, 6)]
    late = job(6, 1, time_limit_s=10.0)
    with np.errstate(over="raise"):
        ranking = PrimalDual(lambda _, ends_s: np.full(ends_s.shape, [[1e-60], *[[1e60]] * 5])).rank(
            snapshot(*held, late, on=nodes(1, 1))
        )
    assert set(ranking.job_ids[:5]) == {1, 2, 3, 4, 5}
    assert ranking.value_of[6] == PrimalDual().slots - 1  # not in the slot that is full
