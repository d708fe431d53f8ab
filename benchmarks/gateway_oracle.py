"""What knowing the requests in advance would give: references for the scaling rules, no rules themselves.

`fewest_misses` is a lower bound for every rule, clairvoyant ones included. `plans` are fleets that change only every
few minutes, chosen in hindsight: what the slow part of the load allows to somebody who knows it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, diags_array, hstack, vstack

from inference_gateway.model import Capacity, Decision, Observation
from simulation.requests.engine import RequestOutcome, simulate
from simulation.requests.replay import RequestReplay

BLOCK_S = 300.0
PRICES = tuple(2.0**power for power in range(-10, 4))
"""Misses that one replica-second may be worth, from a safe plan to a cheap one."""


@dataclass(slots=True)
class Plan:
    """Replicas per block of `BLOCK_S`; itself a rule that asks for them one start time ahead."""

    replicas: Sequence[int]
    start_s: float
    name: str = "hindsight"

    def decide(self, seen: Observation) -> Decision:
        """The larger of what the plan has now and what it has when a start is over."""
        ahead = (self._planned(seen.now_s), self._planned(seen.now_s + self.start_s))
        return Decision(max(ahead), "planned")

    def calibrate(self, capacity: Capacity) -> None:
        """A plan does not change."""

    def _planned(self, at_s: float) -> int:
        return self.replicas[min(int(at_s / BLOCK_S), len(self.replicas) - 1)]


def plans(replay: RequestReplay) -> list[RequestOutcome]:
    """One run per price, from the least to the highest: the plan by dynamic programming, then simulated.

    The programme takes the misses of a block under n replicas from a run with n replicas throughout, and charges one
    start time for each replica added. It ignores queues carried from block to block; the simulation does not.
    """
    settings = replay.settings
    blocks = math.ceil(replay.arrival_s[-1] / BLOCK_S)
    load = sum(replay.service_s) / replay.arrival_s[-1] / settings.concurrency
    fleets = range(max(1, math.floor(0.6 * load)), math.ceil(2 * load) + 2)
    misses = np.array([_misses_by_block(replay, count, blocks) for count in fleets])
    counts = np.array(fleets)
    start_s = settings.start.mean_s
    added_s = start_s * np.maximum(0, counts[None, :] - counts[:, None])
    found = []
    for price in PRICES:
        cost = misses + price * BLOCK_S * counts[:, None]
        best = _cheapest(cost, price * added_s)
        plan = Plan([fleets[at] for at in best], start_s)
        begun = replace(settings, initial=plan.replicas[0])
        found.append(simulate(replay.arrival_s, replay.service_s, plan, begun))
    return found


def _misses_by_block(replay: RequestReplay, count: int, blocks: int) -> list[int]:
    plan = Plan([count], 0.0)
    outcome = simulate(replay.arrival_s, replay.service_s, plan, replace(replay.settings, initial=count))
    late = np.asarray(outcome.wait_s) > replay.settings.slo_s
    block = np.minimum((np.asarray(replay.arrival_s) / BLOCK_S).astype(int), blocks - 1)
    return [int(found) for found in np.bincount(block, weights=late, minlength=blocks)]


def _cheapest(cost: np.ndarray, change: np.ndarray) -> list[int]:
    """The row to take in each column: the least sum of costs and changes between neighbours (Viterbi)."""
    total, came = cost[:, 0], []
    for at in range(1, cost.shape[1]):
        reached = total[:, None] + change
        came.append(reached.argmin(axis=0))
        total = reached.min(axis=0) + cost[:, at]
    path = [int(total.argmin())]
    for step in reversed(came):
        path.append(int(step[path[-1]]))
    return path[::-1]


def fewest_misses(replay: RequestReplay, replica_seconds: float) -> float:
    """A lower bound of the requests over the SLO at this cost, from the end of the warm-up on.

    A linear programme with everything known: a request within the SLO holds a slot at least from its arrival plus the
    SLO until its arrival plus its service time; replicas may be fractions, but at least one; each one added costs a
    start time. Slots are compared at whole seconds only. All of these make the bound smaller, never larger. Raises
    `RuntimeError` if the solver fails, which includes a budget that does not pay for one replica.
    """
    settings = replay.settings
    arrival_s, service_s = np.asarray(replay.arrival_s), np.asarray(replay.service_s)
    seconds = np.arange(0.0, float((arrival_s + service_s).max()))
    first = np.searchsorted(seconds, arrival_s + settings.slo_s, side="right")
    last = np.searchsorted(seconds, arrival_s + service_s, side="left")
    held = last > first
    first, last, counted = first[held], last[held], (arrival_s >= settings.warmup_s)[held]
    requests, size = first.size, seconds.size
    rows = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
    slots = coo_array((np.ones(rows.size), (rows, np.repeat(np.arange(requests), last - first))), (size, requests))
    # Unknowns: missed (per request), replicas and replicas added (per second).
    capacity = hstack([-slots, -settings.concurrency * diags_array(np.ones(size)), csr_array((size, size))])
    changes = diags_array([-np.ones(size - 1), np.ones(size - 1)], offsets=[0, 1], shape=(size - 1, size))
    added = diags_array([-np.ones(size - 1)], offsets=[1], shape=(size - 1, size))
    growth = hstack([csr_array((size - 1, requests)), changes, added])
    paid = (seconds >= settings.warmup_s).astype(float)
    price = np.concatenate([np.zeros(requests), paid, settings.start.mean_s * paid])
    solved = linprog(
        np.concatenate([counted.astype(float), np.zeros(2 * size)]),
        A_ub=vstack([capacity, growth, csr_array(price[None, :])]).tocsr(),
        b_ub=np.concatenate([-slots.sum(axis=1), np.zeros(size - 1), [replica_seconds]]),
        bounds=[(0, 1)] * requests + [(1, None)] * size + [(0, None)] * size,
        method="highs",
    )
    if solved.status != 0:
        raise RuntimeError(f"no lower bound at {replica_seconds:g} replica-seconds: {solved.message}")
    return float(solved.fun)
