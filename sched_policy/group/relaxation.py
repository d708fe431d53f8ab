"""The linear relaxation of matching over kinds."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from scipy.optimize import linprog
from scipy.sparse import coo_array

from sched_policy.columns import Floats, Ints


class Relaxed(Struct, frozen=True, eq=False):
    """An optimal fractional matching.

    Attributes:
        pairs: how many pairs of kinds a <= b, shape (K, K), zero elsewhere.
        prices: what one more vertex of a kind would add to the weight, shape (K,).

    """

    pairs: Floats
    prices: Floats


def relaxed(counts: Ints, weights: Floats) -> Relaxed:
    """Maximise the weight of pairs with each kind used at most `counts` times, fractions allowed (HiGHS)."""
    first, second = np.nonzero(np.triu(weights) > 0)
    pairs = np.zeros(weights.shape)
    if not len(first):
        return Relaxed(pairs, np.zeros(len(counts)))
    edge = np.arange(len(first))
    uses = coo_array(
        (np.ones(2 * len(edge)), (np.concatenate([first, second]), np.concatenate([edge, edge]))),
        shape=(len(counts), len(edge)),
    ).tocsr()  # entries of a pair within a kind add up to 2
    solved = linprog(-weights[first, second], A_ub=uses, b_ub=counts, bounds=(0, None), method="highs-ds")
    if not solved.success:
        raise RuntimeError(f"the relaxed matching has a solution, but the solver says: {solved.message}")
    pairs[first, second] = solved.x
    return Relaxed(pairs, -np.asarray(solved.ineqlin.marginals))
