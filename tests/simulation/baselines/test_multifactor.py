"""Slurm's own order: age, fair share, size."""

from __future__ import annotations

import pytest

from simulation.baselines import Multifactor
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot

DAY_S = 86_400.0


def test_a_factor_of_each_kind_times_its_weight() -> None:
    order = Multifactor(age_weight=100.0, fairshare_weight=0.0, size_weight=10.0, max_age_s=10 * DAY_S)
    young, old = job(1, gpus=4, submit_s=NOW_S), job(2, gpus=1, submit_s=NOW_S - 5 * DAY_S)
    ancient = job(3, gpus=1, submit_s=NOW_S - 50 * DAY_S)
    values = order.rank(snapshot(young, old, ancient, on=nodes(1, 8))).value_of
    assert values == pytest.approx({1: 5.0, 2: 51.25, 3: 101.25})


def test_who_has_used_much_comes_later() -> None:
    order = Multifactor(age_weight=0.0, fairshare_weight=1.0)
    jobs = [
        running(1, "n1", gpus=3, ran_s=1000.0, user="ada"),
        running(2, "n1", gpus=1, ran_s=1000.0, user="bob"),
        job(3, user="ada"),
        job(4, user="bob"),
    ]
    values = order.rank(snapshot(*jobs)).value_of
    # ada has used three quarters, bob one quarter; each has a right to a half.
    assert values[3] == pytest.approx(2 ** -(0.75 / 0.5))
    assert values[4] == pytest.approx(2 ** -(0.25 / 0.5))


def test_nobody_has_used_anything_yet() -> None:
    assert Multifactor(0.0, 1.0).rank(snapshot(job(1), job(2, user="bob"))).values.tolist() == [1.0, 1.0]
    assert len(Multifactor().rank(snapshot())) == 0
