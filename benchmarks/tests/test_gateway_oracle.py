"""What knowing the requests in advance would give: the plan made in hindsight, and the bound no rule can beat."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.gateway_oracle import BLOCK_S, PRICES, Plan, _cheapest, fewest_misses, plans
from inference_gateway.model import Observation
from inference_gateway.scaling.rules import Bounds
from simulation.requests.replay import RequestReplay, measure
from simulation.requests.settings import RequestSettings
from simulation.requests.trace import Request, RequestTrace

SETTINGS = RequestSettings(concurrency=1, bounds=Bounds(1, 64, 64))


def replay(*requests: tuple[float, float]) -> RequestReplay:
    """From arrivals and service times."""
    return RequestReplay.of(RequestTrace(tuple(Request(at_s, service_s=s) for at_s, s in requests)), None, SETTINGS)


def test_the_bound_of_three_long_requests_at_once() -> None:
    """One replica with one slot takes one of them in time; two more for ten seconds and their starts cost 140 s."""
    three = replay((0.0, 12.0), (0.0, 12.0), (0.0, 12.0))
    assert fewest_misses(three, 12.0) == pytest.approx(2.0)
    assert fewest_misses(three, 500.0) == pytest.approx(0.0)


def test_no_rule_is_below_the_bound() -> None:
    busy = replay(*((at_s / 2, 3.0) for at_s in range(400)))
    for rule in ("slurm", "dilu", "knative"):
        found = busy.measured(rule, {})
        assert found.slo_misses >= fewest_misses(busy, found.replica_seconds) - 1e-6


def test_a_budget_below_one_replica_has_no_bound() -> None:
    with pytest.raises(RuntimeError, match="1 replica-seconds"):
        fewest_misses(replay((0.0, 12.0)), 1.0)


def test_a_plan_asks_one_start_ahead_and_gives_back_in_time() -> None:
    plan = Plan([2, 5, 1], start_s=60.0)
    seconds = (0, BLOCK_S - 61, BLOCK_S - 60, BLOCK_S, 2 * BLOCK_S - 1, 2 * BLOCK_S, 9 * BLOCK_S)
    assert [plan.decide(Observation(at_s, 0, 0, 0, 1, 0)).replicas for at_s in seconds] == [2, 2, 5, 5, 5, 1, 1]


def test_the_cheapest_path_weighs_changes() -> None:
    cost = np.array([[0.0, 5.0, 0.0], [3.0, 0.0, 3.0]])
    assert _cheapest(cost, np.array([[0.0, 1.0], [1.0, 0.0]])) == [0, 1, 0]
    assert _cheapest(cost, np.array([[0.0, 4.0], [4.0, 0.0]])) == [0, 0, 0]


def test_a_higher_price_makes_cheaper_plans() -> None:
    """Ten minutes with one request in flight, then ten with four."""
    changing = replay(*((float(at_s), 1.0) for at_s in range(600)), *((600 + at_s / 4, 1.0) for at_s in range(2400)))
    found = [measure(outcome, replace(SETTINGS, initial=1)) for outcome in plans(changing)]
    assert len(found) == len(PRICES)
    assert all(later.replica_seconds <= earlier.replica_seconds for earlier, later in pairwise(found))
    assert found[0].slo_misses < found[-1].slo_misses
