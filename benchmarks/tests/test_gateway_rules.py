"""How the benchmark of scaling rules judges one rule against another."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmarks.gateway_rules import OURS, PEERS, Run, against, best, peer_options
from inference_gateway.model import Capacity
from inference_gateway.scaling.rules import build
from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestSettings
from simulation.requests.trace import Request, RequestTrace

METRICS = RequestReplay.of(RequestTrace((Request(0.0, service_s=1.0),)), None, RequestSettings()).measured("dilu", {})


def run(arm: str, replica_seconds: float, misses: int, options: Mapping[str, object] | None = None) -> Run:
    return Run(arm, options or {}, replace(METRICS, replica_seconds=replica_seconds, slo_misses=misses))


PEER_RUNS = [run("knative", 100.0, 80), run("dilu", 90.0, 100), run("knative", 200.0, 10)]


def test_the_best_peer_costs_no_more() -> None:
    assert best(PEER_RUNS, 199.0) == PEER_RUNS[0]
    assert best(PEER_RUNS, 200.0) == PEER_RUNS[2]
    assert best(PEER_RUNS, 89.0) is None


@pytest.mark.parametrize(("cost", "misses", "ratio"), [(150.0, 40, 0.5), (95.0, 110, 1.1), (200.0, 0, 0.5)])
def test_ratio_of_ours_to_theirs(cost: float, misses: int, ratio: float) -> None:
    assert against(run(OURS, cost, misses), PEER_RUNS)["ratio"] == ratio


def test_without_a_peer_at_the_cost_there_is_no_ratio() -> None:
    assert "ratio" not in against(run(OURS, 1.0, 0), PEER_RUNS)


@pytest.mark.parametrize("rule", PEERS)
def test_all_options_of_a_peer_are_drawn_and_can_be_used(rule: str) -> None:
    drawn = peer_options(rule, 60)
    assert drawn[0] == {}
    assert drawn == peer_options(rule, 60)
    for name, values in PEERS[rule].items():
        assert {options[name] for options in drawn[1:]} == set(values)
    for options in drawn:
        build(rule, options, Capacity(1.0, 8, 60.0))
