"""Which memory entries of a training active GPUs take: as many as any assignment, largest where it fits."""

from itertools import combinations, permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulation.colocation.dilu import fit_entries
from tests.simulation.colocation.builders import GIB, cluster, inference, on

GPUS = 4


def most(entries: tuple[int, ...], free: tuple[int, ...]) -> int:
    """By trying everything."""
    return max(
        count
        for count in range(len(entries) + 1)
        for chosen in combinations(entries, count)
        if any(
            all(map(int.__le__, chosen, gpus))
            for gpus in permutations(free, min(count, len(free)))
            if len(gpus) == count
        )
    )


@given(
    taken=st.lists(st.tuples(*[st.integers(0, 40)] * GPUS), min_size=1, max_size=3),
    entries=st.lists(st.integers(1, 40), min_size=1, max_size=GPUS),
    banned=st.sets(st.integers(0, 3 * GPUS - 1)),
)
def test_no_assignment_gives_away_more(taken: list[tuple[int, ...]], entries: list[int], banned: set[int]) -> None:
    flat = [gib for node in taken for gib in node]
    hosted = [on(k, inference(str(k), 0.1, 0.1, gib), k) for k, gib in enumerate(flat)]
    loads = cluster(*hosted, nodes=len(taken), gpus=GPUS)
    gpus = np.array([g for g in range(len(flat)) if g not in banned], dtype=np.int64)
    falling = tuple(sorted(entries, reverse=True))
    found = fit_entries([e * GIB for e in falling], gpus, loads)
    for node in range(len(taken)):
        here = [(int(g), int(e)) for g, e in zip(gpus, found, strict=True) if g // GPUS == node]
        given_away = [(g, e) for g, e in here if e >= 0]
        assert len({e for _, e in given_away}) == len(given_away)
        assert all(falling[e] + flat[g] <= 40 for g, e in given_away)
        assert len(given_away) == most(falling, tuple(40 - flat[g] for g, _ in here))


def test_of_equal_room_the_gpu_with_more_requests_takes_the_larger_entry() -> None:
    loads = cluster(on(0, inference("a", 0.1), 0), on(1, inference("b", 0.3), 1), nodes=1)
    assert fit_entries([30 * GIB, 20 * GIB], np.array([0, 1]), loads).tolist() == [1, 0]


def test_nothing_to_fit_into() -> None:
    assert fit_entries([GIB], np.zeros(0, dtype=np.int64), cluster()).tolist() == []
