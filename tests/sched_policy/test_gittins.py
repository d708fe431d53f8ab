"""The Gittins index, and what jobs submitted together tell of each other's length."""

from __future__ import annotations

import numpy as np
import pytest

from explsched.run_times import LEAST_S, LIKENESS, LIKENESS_S, PRIOR, TAIL, effective_left_s
from sched_policy.model import Direction, Exploration, ProgressPoint
from sched_policy.order import Gittins
from sched_policy.snapshot import Snapshot
from simulation.muri.share import Lengths
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot


def about(length_s: float) -> float:
    """What a length tells of a job that is alike."""
    return LIKENESS * length_s + LIKENESS_S


def left_s(ran_s: float, *lengths_s: float, weight: float = 1e6, ended: bool = True) -> float:
    """Against neighbours that count so much that the prior does not."""
    shape = (1, len(lengths_s))
    found = effective_left_s(np.array([ran_s]), np.array([lengths_s]), np.full(shape, weight), np.full(shape, ended))
    return float(found[0])


def test_a_length_that_is_certain_leaves_the_rest_of_it() -> None:
    assert left_s(100.0, 1000.0) == pytest.approx(about(1000.0) - 100.0, rel=1e-3)
    assert left_s(100.0, 1000.0, 1000.0) == pytest.approx(about(1000.0) - 100.0, rel=1e-3)
    assert left_s(1001.0, 1000.0) < 150.0  # a little longer than its neighbour: it will end soon all the same


def test_a_chance_to_end_soon_is_worth_trying_first() -> None:
    # Half of them end early: so long for half a chance is far less than the mean of both lengths.
    assert left_s(0.0, 10.0, 9000.0) == pytest.approx(2 * about(10.0), rel=1e-2)
    assert left_s(50.0, 10.0, 9000.0) == pytest.approx(about(9000.0) - 50.0, rel=1e-3)


def test_neighbours_that_have_not_ended_make_an_early_end_less_likely() -> None:
    lengths_s, ended = np.array([[100.0, 500.0, 500.0]]), np.array([[True, False, False]])
    unsure = effective_left_s(np.array([0.0]), lengths_s, np.full((1, 3), 1e6), ended)
    assert unsure[0] == pytest.approx(3 * about(100.0), rel=1e-2)  # all three run so long for one end


def test_without_neighbours_the_least_attained_service_comes_first() -> None:
    none = np.zeros((3, 0))
    found = effective_left_s(np.array([0.0, 1000.0, 50_000.0]), none, none, none.astype(np.bool_))
    assert found.tolist() == pytest.approx([LEAST_S / TAIL, (1000.0 + LEAST_S) / TAIL, (50_000.0 + LEAST_S) / TAIL])
    assert PRIOR < 1.0


def test_jobs_submitted_together_tell_of_each_other_and_far_ones_do_not() -> None:
    lengths = Lengths()
    numbers = [lengths.add() for _ in range(200)]
    lengths.ran(100, 5000.0, ended=True)
    near, far = lengths.effective_left_s([numbers[101], numbers[150]])
    new = lengths.effective_left_s([numbers[0]])[0]
    assert far == new
    assert 100 in lengths.near(101)
    assert 100 not in lengths.near(150)
    assert near != far


def test_a_known_length_counts_and_a_limit_bounds_what_is_learnt() -> None:
    known, limited = job(1, gpus=2, expected_s=500.0), job(2, time_limit_s=30.0)
    values = Gittins().rank(snapshot(known, limited)).value_of
    assert values[1] == -1000.0
    assert values[2] == -30.0


def test_ended_jobs_of_a_sweep_tell_how_long_the_others_take() -> None:
    sweep = Exploration(sweep="lr", metric="loss", direction=Direction.MIN)
    end = (ProgressPoint(10, 2000.0, 0.1),)
    ended = [job(i, exploration=sweep, points=end, submit_s=NOW_S - 9000 + i) for i in (1, 2)]
    runs = running(3, "n1", 1, ran_s=1900.0, submit_s=NOW_S - 8000, exploration=sweep)
    alone, told = snapshot(runs), Snapshot.of(NOW_S, nodes(), [runs], ended)
    assert Gittins().rank(told).value_of[3] > Gittins().rank(alone).value_of[3]
    assert "judged by jobs submitted with it" in Gittins().rank(told)[0].reason
