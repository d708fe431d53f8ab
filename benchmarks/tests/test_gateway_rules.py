"""How the benchmark of scaling rules judges one rule against another."""

from dataclasses import replace

import pytest

from benchmarks.gateway_rules import Run, _against, _along
from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestSettings
from simulation.requests.trace import Request, RequestTrace

METRICS = RequestReplay.of(RequestTrace((Request(0.0, service_s=1.0),)), None, RequestSettings()).measured("dilu", {})


def run(target: float | None, replica_seconds: float, misses: int) -> Run:
    return Run(target, replace(METRICS, replica_seconds=replica_seconds), (0, misses, 0, 0))


OURS = [run(0.8, 200.0, 0), run(1.0, 100.0, 50)]


@pytest.mark.parametrize(
    ("replica_seconds", "misses", "ours", "holds"),
    [
        (300.0, 10, 0, True),
        (300.0, 0, 0, True),
        (199.0, 100, 50, True),
        (199.0, 99, 50, False),
        (100.0, 100, 50, True),
        (99.0, 1000, None, False),
    ],
)
def test_half_the_misses_at_no_more_replica_seconds(
    replica_seconds: float, misses: int, ours: int | None, *, holds: bool
) -> None:
    found = _against(OURS, run(0.7, replica_seconds, misses), 2.0)
    assert (found["fewest"], found["holds"]) == (ours, holds)


def test_the_default_is_no_point_of_the_curve() -> None:
    found = _along(OURS, [run(None, 1.0, 1), run(0.7, 300.0, 10), run(0.9, 50.0, 10)], 2.0)
    assert (found["points"], found["holds"]) == (2, 1)
