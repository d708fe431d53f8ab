import pytest
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.model import Direction, GpuRequest, Job, ProgressPoint
from sched_policy.plan import Ranking
from simulation.baselines import Slaq
from tests.sched_policy.builders import EXPLORING, curve, job, row, running, snapshot


def rank(*jobs: Job) -> Ranking:
    return Slaq(100).rank(snapshot(*jobs))


def ranked(*jobs: Job) -> list[int]:
    return [score.job_id for score in rank(*jobs)]


def exploring(job_id: int, points: tuple[ProgressPoint, ...], **fields: object) -> Job:
    return running(job_id, "n1", exploration=EXPLORING, points=points, **fields)


def test_the_curve_that_still_falls_comes_before_the_one_that_has_fallen() -> None:
    converged, falling = curve(0.1, 4.0, 4000), curve(0.1, 0.5, 300)
    assert ranked(exploring(1, converged), exploring(2, falling)) == [2, 1]


def test_each_job_is_its_own_yardstick() -> None:
    small = curve(0.1, 1.0, 200)
    large = tuple(replace(point, value=1000 * point.value + 7) for point in small)
    value = rank(exploring(1, small), exploring(2, large)).value_of
    assert value[2] == pytest.approx(value[1], rel=1e-6)


def test_two_gpus_for_the_same_reduction_count_half() -> None:
    points = curve(0.1, 1.0, 200)
    doubled = tuple(replace(point, gpu_s=2 * point.gpu_s) for point in points)
    value = rank(exploring(1, points), exploring(2, doubled, request=GpuRequest(2))).value_of
    assert value[2] == pytest.approx(value[1] / 2, rel=1e-6)


def test_the_value_is_the_predicted_fall_in_largest_changes_per_gpu_hour() -> None:
    halving = tuple(ProgressPoint(i, 100.0 * i, 8.0 * 0.5**i) for i in range(12))
    expected_fall = 8.0 * 0.5**11 - 8.0 * 0.5**12
    assert rank(exploring(1, halving)).value_of[1] == pytest.approx(36 * expected_fall / 4.0, rel=0.15)


def test_new_jobs_come_first_whatever_their_sweep_has_learned() -> None:
    learning, two_reports = curve(0.1, 1.0, 200), curve(0.1, 1.0, 200)[:2]
    jobs = exploring(1, learning), exploring(2, two_reports), job(3, exploration=EXPLORING)
    assert ranked(*jobs) == [2, 3, 1]
    assert rank(*jobs)[0].value == pytest.approx(1 + rank(*jobs).value_of[1])


def test_jobs_without_a_metric_come_last() -> None:
    rising = tuple(replace(point, value=-point.value) for point in curve(0.1, 1.0, 200))
    assert ranked(job(1), exploring(2, rising), job(3)) == [2, 1, 3]
    assert rank(exploring(2, rising))[0].value == 0.0


def test_a_metric_to_be_maximised_counts_upwards() -> None:
    falling = curve(0.1, 1.0, 200)
    rising = tuple(replace(point, value=-point.value) for point in falling)
    accuracy = replace(EXPLORING, direction=Direction.MAX)
    value = rank(exploring(1, falling), running(2, "n1", exploration=accuracy, points=rising)).value_of
    assert value[2] == pytest.approx(value[1])


def test_the_catalogue_looks_a_quantum_ahead() -> None:
    assert row("slaq", catalog.PolicyOptions(quantum_s=60)).order == Slaq(60)
