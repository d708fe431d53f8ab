import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sched_policy.group.interleave import efficiency
from sched_policy.group.rounds import match
from sched_policy.snapshot import Floats, Ints
from simulation.muri import matching
from simulation.muri.matching import EXACT_VERTICES, Bucket, ManyJobs, match_kinds, relaxed
from tests.sched_policy.group.profiles import different, efficiencies_of_pairs, profiles


def _brute_force(weights: Floats, free: tuple[int, ...]) -> float:
    """Best matching by trying everything: the first free vertex stays alone or takes one of the others."""
    if len(free) < 2:
        return 0.0
    first, rest = free[0], free[1:]
    best = _brute_force(weights, rest)
    for second in rest:
        if weights[first, second] > 0:
            others = tuple(vertex for vertex in rest if vertex != second)
            best = max(best, weights[first, second] + _brute_force(weights, others))
    return best


def _symmetric(rng: np.random.Generator, size: int) -> Floats:
    weights = np.triu(rng.uniform(-0.2, 1.0, (size, size)))
    return weights + weights.T - np.diag(np.diag(weights))


def _weight(pairs: Ints, weights: Floats) -> float:
    return float((pairs * weights).sum())


@given(st.integers(0, 2**32 - 1), st.integers(0, 8))
def test_match_is_a_maximum(seed: int, size: int) -> None:
    weights = _symmetric(np.random.default_rng(seed), size)
    pairs = match(weights)
    assert len({vertex for pair in pairs for vertex in pair}) == 2 * len(pairs)
    assert sum(weights[pair] for pair in pairs) == pytest.approx(_brute_force(weights, tuple(range(size))), abs=1e-7)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_kinds_are_matched_like_their_vertices(seed: int, counts: list[int]) -> None:
    weights = _symmetric(np.random.default_rng(seed), len(counts))
    kind_of = np.repeat(np.arange(len(counts)), counts)
    pairs = match_kinds(counts, weights)
    assert (pairs.sum(axis=0) + pairs.sum(axis=1) <= counts).all()
    best = _brute_force(weights[np.ix_(kind_of, kind_of)], tuple(range(len(kind_of))))
    assert _weight(pairs, weights) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_many_vertices_are_matched_as_well_as_by_the_exact_algorithm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(10, 40, 8)
    weights = _symmetric(rng, 8)
    assert counts.sum() > EXACT_VERTICES
    kind_of = np.repeat(np.arange(8), counts)
    exact = sum(weights[kind_of[a], kind_of[b]] for a, b in match(weights[np.ix_(kind_of, kind_of)]))
    pairs = match_kinds(counts.tolist(), weights)
    assert (pairs.sum(axis=0) + pairs.sum(axis=1) <= counts).all()
    assert _weight(pairs, weights) >= 0.9999 * exact


def test_a_thousand_jobs_reach_99_percent_of_the_maximum() -> None:
    kinds = profiles(8)
    weights = np.array([[efficiency([a, b]) for b in kinds] for a in kinds])
    counts = np.bincount(np.random.default_rng(7).integers(0, len(kinds), 1000), minlength=len(kinds)).tolist()
    pairs = match_kinds(counts, weights)
    assert _weight(pairs, weights) >= 0.99 * float((relaxed(np.asarray(counts), weights).pairs * weights).sum())


@pytest.mark.parametrize("seed", range(3))
def test_many_kinds_reach_99_percent_of_the_exact_maximum(seed: int) -> None:
    weights = efficiencies_of_pairs(different(200, seed))
    pairs = match_kinds([1] * 200, weights)
    assert (pairs.sum(axis=0) + pairs.sum(axis=1) <= 1).all()
    exact = sum(weights[pair] for pair in match(weights))
    assert _weight(pairs, weights) >= 0.99 * exact


def test_clusters_of_equal_vertices() -> None:
    """More kinds than are matched directly, all but two of them alike."""
    weights = np.full((100, 100), 0.5)
    weights[0, 1] = weights[1, 0] = 0.9
    pairs = match_kinds([1] * 100, weights)
    assert _weight(pairs, weights) == pytest.approx(0.9 + 49 * 0.5)


def test_no_edges_no_pairs() -> None:
    assert not match_kinds([30, 30], np.zeros((2, 2))).any()
    assert not match_kinds([1] * 100, np.zeros((100, 100))).any()


def test_many_different_jobs_are_grouped_by_the_same_efficiencies() -> None:
    jobs = different(120, 3)
    grouper = ManyJobs()
    kinds = tuple(grouper.kind(job) for job in jobs)
    groups = grouper.groups([Bucket(1, kinds)], capacity_gpus=40)[0]
    assert len(groups) == 40
    assert sorted(place for group in groups for place in group) == list(range(120))
    assert max(len(group) for group in groups) <= 4


def test_pairs_of_many_different_jobs_reach_99_percent_of_the_exact_maximum() -> None:
    jobs = different(160, 4)
    weights = efficiencies_of_pairs(jobs)
    grouper = ManyJobs(max_members=2)
    groups = grouper.groups([Bucket(1, tuple(grouper.kind(job) for job in jobs))], capacity_gpus=1)[0]
    reached = sum(weights[group[0], group[1]] for group in groups if len(group) == 2)
    assert reached >= 0.99 * sum(weights[pair] for pair in match(weights))


def test_very_many_different_jobs_are_matched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "MOST_AT_ONCE", 70)
    jobs = different(150, 5)
    grouper = ManyJobs(max_members=2)
    groups = grouper.groups([Bucket(1, tuple(grouper.kind(job) for job in jobs))], capacity_gpus=1)[0]
    assert sorted(place for group in groups for place in group) == list(range(150))
    assert len(groups) == 75
    assert all(group[0] // 70 == group[1] // 70 for group in groups)
