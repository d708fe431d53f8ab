"""The Gittins index, and what jobs submitted together tell of each other's length."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from sched_policy.model import Job
from sched_policy.order import (
    LEAST,
    LIKENESS,
    LIKENESS_MORE,
    NEIGHBOURS,
    PRIOR,
    QUANTUM_S,
    TAIL,
    Gittins,
    effective_left_s,
    still_telling,
)
from sched_policy.snapshot import EndedRun, Snapshot
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot


def about(length_s: float) -> float:
    """What a length tells of a job that is alike."""
    return LIKENESS * length_s + LIKENESS_MORE * QUANTUM_S


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
    least_s = LEAST * QUANTUM_S
    assert found.tolist() == pytest.approx([least_s / TAIL, (1000.0 + least_s) / TAIL, (50_000.0 + least_s) / TAIL])
    assert PRIOR < 1.0


def run(job_id: int, run_s: float, *, gpus: int = 1) -> EndedRun:
    """A job that has ended; jobs are submitted a second after each other, by their ids."""
    return EndedRun(job_id, NOW_S - 9000 + job_id, gpus, run_s)


def values(jobs: list[Job], *ended: EndedRun) -> Mapping[int, float]:
    return Gittins().rank(Snapshot.of(NOW_S, nodes(), jobs, ended_runs=ended)).value_of


def waiting(job_id: int) -> Job:
    return job(job_id, submit_s=NOW_S - 9000 + job_id)


def test_jobs_that_have_ended_tell_how_long_those_submitted_with_them_take() -> None:
    runs = running(3, "n1", 1, ran_s=1900.0, submit_s=NOW_S - 8997)
    ended = (run(1, 2000.0), run(2, 2000.0))
    assert values([runs], *ended)[3] > values([runs])[3]
    told = Gittins().rank(Snapshot.of(NOW_S, nodes(), [runs], ended_runs=ended))
    assert "judged by jobs submitted with it" in told[0].reason
    other_size = (run(1, 2000.0, gpus=2), run(2, 2000.0, gpus=2))
    assert values([runs], *other_size)[3] == values([runs])[3]


def test_far_jobs_tell_nothing() -> None:
    jobs = [waiting(job_id) for job_id in range(1, 100) if job_id != 50]
    found, without = values(jobs, run(50, 5000.0)), values(jobs)
    assert {job_id for job_id in found if found[job_id] != without[job_id]} == {*range(30, 50), *range(51, 71)}


def test_what_tells_of_nobody_is_forgotten_and_what_may_tell_of_the_next_is_kept() -> None:
    ended = [run(job_id, 100.0) for job_id in range(1, 200)]
    columns = snapshot(waiting(50)).columns
    at = [job_id for job_id in range(1, 200) if job_id != 50]
    kept = [one.job_id for one in still_telling([one for one in ended if one.job_id != 50], columns)]
    assert kept == [job_id for job_id in at if abs(job_id - 50) <= NEIGHBOURS or job_id >= 200 - NEIGHBOURS]
    assert still_telling([], columns) == ()


def test_jobs_are_judged_alike_whatever_is_long_on_a_cluster() -> None:
    random = np.random.default_rng(2)
    at_s, ran_s = np.arange(40.0), random.uniform(1, 9000, 40)

    def judged(scale: float) -> list[float]:
        jobs = [job(i, time_limit_s=None, submit_s=scale * at_s[i], earlier_s=scale * ran_s[i]) for i in range(20)]
        ended = [EndedRun(i, scale * at_s[i], 1, scale * ran_s[i]) for i in range(20, 40)]
        seen = Snapshot.of(scale * 9000, nodes(), jobs, ended_runs=ended)
        return [value / scale for value in Gittins(scale * QUANTUM_S).rank(seen).value_of.values()]

    assert judged(1 / 4000) == pytest.approx(judged(1.0))


def test_who_is_forgotten_changes_nothing_for_who_is_there() -> None:
    random = np.random.default_rng(1)
    rows = random.permutation(600) + 1
    jobs = [waiting(int(job_id)) for job_id in rows[:6]]
    ended = [run(int(job_id), float(random.uniform(1, 9000))) for job_id in rows[6:]]
    kept = still_telling(ended, snapshot(*jobs).columns)
    assert len(kept) < len(ended)
    assert values(jobs, *kept) == pytest.approx(values(jobs, *ended), rel=1e-3)


def test_a_known_length_counts_and_a_limit_bounds_what_is_learnt() -> None:
    known, limited = job(1, gpus=2, expected_s=500.0), job(2, time_limit_s=30.0)
    found = values([known, limited])
    assert found[1] == -1000.0
    assert found[2] == -30.0
