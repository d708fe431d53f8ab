"""An untried training is looked at for a quantum; nobody lives on what is believed of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.model import Exploration, GpuRequest, Job, JobState
from sched_policy.utility import estimate
from simulation.primal_dual import prior
from tests.sched_policy.builders import EXPLORING, curve, job, nodes, row, running, snapshot

QUANTUM_S = 100.0
POLICY = row("explsched", catalog.PolicyOptions(quantum_s=QUANTUM_S, objective="total"))
WHOLE = 1.0 / QUANTUM_S
"""Of its sweep's improvement, per GPU-second."""


def honest(job_id: int, **fields: Any) -> Job:
    """A training of another user that has reported for long, and consented."""
    return running(job_id, "n1", **{"user": "eve", "exploration": EXPLORING, "points": curve(0.5, 1.0, 900), **fields})


def claiming(job_id: int, sweep: str = "new", **fields: Any) -> Job:
    """A waiting job that names a sweep and has shown nothing."""
    return job(job_id, exploration=Exploration(sweep=sweep), **fields)


def silent(job_id: int, ran_s: float, sweep: str = "new", **fields: Any) -> Job:
    """A running job that names a sweep and has shown nothing."""
    return running(
        job_id, "n2", ran_s=ran_s, first_report_s=None, **{"exploration": Exploration(sweep=sweep), **fields}
    )


def believed(*jobs: Job) -> dict[int, float]:
    """Utilities of the jobs that have a prior."""
    found = estimate(snapshot(*jobs), QUANTUM_S, prior)
    return {job_id: one.value for job_id, one in found.items() if not one.measured}


def test_the_first_of_an_untried_sweep_is_looked_at() -> None:
    assert believed(claiming(1), claiming(2)) == {1: pytest.approx(WHOLE)}


def test_more_gpus_do_not_learn_more_in_the_same_quantum() -> None:
    assert believed(claiming(1, request=GpuRequest(4))) == {1: pytest.approx(WHOLE / 4)}


def test_names_of_sweeps_do_not_multiply_it() -> None:
    assert set(believed(*(claiming(number, f"sweep {number}") for number in range(1, 30)))) == {1}
    assert set(believed(silent(1, 10.0, "a"), claiming(2, "b"), silent(3, 10.0, "c"))) == {1}
    assert set(believed(claiming(1, "a", user="ada"), claiming(2, "a", user="eve"))) == {1, 2}


def test_who_cannot_start_keeps_nobody_from_being_looked_at() -> None:
    assert set(believed(claiming(1, eligible=False), claiming(2, array_tasks=9), claiming(3))) == {3}


def test_it_ends_after_a_quantum_for_all_that_the_user_has() -> None:
    assert set(believed(silent(1, QUANTUM_S - 1), claiming(2, "other"))) == {1}
    assert believed(silent(1, QUANTUM_S), claiming(2, "other")) == {}
    assert set(believed(silent(1, QUANTUM_S), claiming(2, user="eve"))) == {2}


def test_it_does_not_come_back_with_a_requeue_nor_with_the_next_job() -> None:
    assert believed(claiming(1, restarts=1), claiming(2, "other")) == {}
    assert believed(claiming(1, user_silent_s=QUANTUM_S)) == {}
    assert set(believed(claiming(1, user_silent_s=QUANTUM_S / 2))) == {1}


def test_it_ends_for_a_silent_job_beside_siblings_that_report() -> None:
    sibling = honest(1, user="ada")
    waits = claiming(2, "digits")
    assert set(believed(sibling, waits)) == {2}
    assert believed(sibling, silent(3, QUANTUM_S, "digits"), waits) == {}


def test_a_sibling_vouches_for_all_that_are_untried() -> None:
    sibling = honest(1, user="ada", points=curve(0.1, 1.0, 900))
    wide = replace(sibling, job_id=2, request=GpuRequest(4))
    found = believed(sibling, claiming(3, "digits"), claiming(4, "digits", request=GpuRequest(4)), wide)
    assert found.keys() == {3, 4}
    # As fast per GPU-second as the best was over its first quantum, whatever the GPUs.
    assert found[3] == found[4]
    assert found[3] > estimate(snapshot(sibling), QUANTUM_S, prior)[1].value


def test_a_training_outside_a_sweep_has_none_and_costs_none() -> None:
    outside = Exploration(checkpoint_signal="USR1")
    assert believed(job(1, exploration=outside)) == {}
    assert set(believed(silent(1, 9 * QUANTUM_S, exploration=outside), claiming(2))) == {2}


def ranks(*jobs: Job) -> list[int]:
    return [score.job_id for score in POLICY.plan(snapshot(*jobs)).scores]


def test_who_never_reports_does_not_outrank_honest_trainings_for_ever() -> None:
    trainings = [honest(number) for number in (1, 2)]
    liars = [claiming(number, f"sweep {number}") for number in (11, 12, 13)]
    assert ranks(*trainings, silent(10, QUANTUM_S), *liars)[0] in (1, 2)
    assert POLICY.plan(snapshot(*trainings, silent(10, QUANTUM_S), *liars)).preemptions == ()


def test_one_look_interrupts_one_job_and_no_more() -> None:
    full = [honest(number) for number in range(1, 5)]
    liars = [claiming(number, f"sweep {number}") for number in range(11, 19)]
    plan = POLICY.plan(snapshot(*full, *liars, on=nodes(1)))
    assert [gone.beneficiary for gone in plan.preemptions] == [11]


def test_jobs_that_do_not_report_are_not_lifted_by_what_is_only_believed() -> None:
    trainings = [honest(number) for number in (1, 2)]
    plan = POLICY.plan(snapshot(*trainings, claiming(10), job(20), job(21)))
    value = {score.job_id: score.value for score in plan.scores}
    assert value[10] > max(value[1], value[2])
    assert max(value[20], value[21]) <= max(value[1], value[2])
    assert not any(np.isnan(list(value.values())))


def test_where_nobody_is_left_to_compare_with_jobs_keep_the_fallbacks_order() -> None:
    assert ranks(claiming(1, restarts=1, time_limit_s=900.0), claiming(2, restarts=1, time_limit_s=60.0)) == [2, 1]


def test_a_job_that_leaves_holds_its_gpus_still() -> None:
    leaving = silent(1, 10.0, state=JobState.COMPLETING)
    assert set(believed(leaving, claiming(2))) == {1}
