import numpy as np
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from simulation.finish_time import (
    Claims,
    central_shares,
    fairness,
    jitter,
    least_rho,
    least_shares,
    solved_shares,
)


def _claims(seed: int, jobs: int, capacity_gpus: float = 16.0) -> Claims:
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0], jobs)
    work_s = rng.lognormal(7.0, 1.0, jobs)
    age_s = rng.exponential(2000.0, jobs) * rng.integers(0, 2)
    part = np.minimum(1.0, np.ceil(capacity_gpus / jobs) / gpus)
    return Claims(age_s, work_s, 0.3 * age_s + work_s / part, gpus, capacity_gpus)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20))
@example(seed=614, jobs=14)  # the solver is not sure here
def test_the_optimum_is_the_solvers(seed: int, jobs: int) -> None:
    claims = _claims(seed, jobs)
    solved = solved_shares(claims)
    if solved is None:
        reject()
    assert least_rho(claims) == pytest.approx(float(fairness(claims, solved).max()), rel=1e-5)
    # The optimum pins the jobs at the maximum: there both choices of shares agree with the solver.
    pinned = fairness(claims, solved) > least_rho(claims) * (1 - 1e-7)
    assert central_shares(claims)[pinned] == pytest.approx(solved[pinned], rel=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_both_choices_of_shares_are_optimal_and_feasible(seed: int, jobs: int) -> None:
    claims = _claims(seed, jobs)
    rho = least_rho(claims)
    for shares in (least_shares(claims, rho), central_shares(claims)):
        assert (shares > 0).all()
        assert (shares <= 1 + 1e-12).all()
        assert claims.gpus @ shares <= claims.capacity_gpus * (1 + 1e-9)
        assert fairness(claims, shares).max() <= rho * (1 + 1e-9)


def test_equal_jobs_share_a_full_cluster_equally() -> None:
    equal = np.ones(4)
    claims = Claims(0 * equal, 100 * equal, 200 * equal, equal, capacity_gpus=2.0)
    assert least_rho(claims) == pytest.approx(1.0)
    assert central_shares(claims) == pytest.approx(0.5 * equal)


def test_the_centre_of_one_free_share() -> None:
    """Job 0 needs all its time; job 1 could do with 1/4. With room for both: 2/(x - 1/4) = 1/(1 - x)."""
    claims = Claims(np.array([300.0, 0.0]), np.array([100.0, 100.0]), np.array([100.0, 100.0]), np.ones(2), 1e9)
    assert least_rho(claims) == pytest.approx(4.0)
    assert least_shares(claims, 4.0) == pytest.approx([1.0, 0.25])
    assert central_shares(claims) == pytest.approx([1.0, 0.75])


def test_the_centre_keeps_away_from_a_full_cluster() -> None:
    claims = Claims(np.array([300.0, 0.0]), np.array([100.0, 100.0]), np.array([100.0, 100.0]), np.ones(2), 1.5)
    share = central_shares(claims)[1]
    assert 2 / (share - 0.25) - 1 / (1 - share) == pytest.approx(1 / (0.5 - share))


def test_ties_are_broken_by_the_job_id_alone() -> None:
    ids = np.arange(10_000)
    factors = jitter(ids)
    assert (jitter(ids[::-1]) == factors[::-1]).all()
    assert len(np.unique(factors)) > 9_990
    assert np.abs(factors - 1).max() <= 1e-5
    assert abs((factors - 1).mean()) < 1e-6
