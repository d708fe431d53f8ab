import pytest

from sched_policy.model import StageProfile
from simulation.interference import opportunistic_iteration_s

GUARANTEED = StageProfile(10.0, 4.0, 3.0, 2.0)  # gaps: 5 for io, 6 for gpu, 7 for net


@pytest.mark.parametrize(
    ("io_s", "gpu_s", "net_s", "rounds"),
    [
        (0.0, 0.0, 0.0, 0),
        (5.0, 0.0, 0.0, 1),  # fills one gap exactly
        (6.0, 0.0, 0.0, 2),  # needs a second gap
        (6.0, 2.0, 0.0, 2),  # the computation fits beside the second reading: min(2, 2, 5-1) is done
        (6.0, 3.0, 0.0, 3),  # one second of it does not
        (0.0, 3.0, 4.0, 1),  # computing ends before the reading of the other does: all 4 s of talk follow at once
        (0.0, 5.0, 4.0, 1),  # it ends after, and a talk of no more than the other's reading costs no round
        (0.0, 5.0, 5.0, 2),
        (0.0, 0.0, 15.0, 2),  # two whole gaps of 7, the rest is shorter than the other's reading
    ],
)
def test_rounds_of_the_guaranteed_job(io_s: float, gpu_s: float, net_s: float, rounds: int) -> None:
    assert opportunistic_iteration_s(StageProfile(1.0, io_s, gpu_s, net_s), GUARANTEED) == pytest.approx(10.0 * rounds)


def test_a_guaranteed_job_that_only_computes_leaves_no_time_to_compute() -> None:
    only_computes = StageProfile(10.0, 0.0, 3.0, 0.0)
    assert opportunistic_iteration_s(StageProfile(1.0, 0.0, 1.0, 0.0), only_computes) == pytest.approx(10.0)
