from sched_policy import catalog
from simulation.baselines import Fair
from tests.sched_policy.builders import NOW_S, job, row, running, snapshot


def ranked(order: Fair, *jobs: object) -> list[int]:
    return [score.job_id for score in order.rank(snapshot(*jobs))]


def test_least_attained_gpu_time_comes_first() -> None:
    long, short, waiting = running(1, "n1", ran_s=3000), running(2, "n1", ran_s=700), job(3, earlier_s=1900)
    assert ranked(Fair(600), long, short, waiting) == [2, 3, 1]


def test_within_a_slice_order_of_submission_decides() -> None:
    assert ranked(Fair(600), job(1, earlier_s=590), job(2), job(3, earlier_s=10)) == [1, 2, 3]


def test_a_gang_pays_for_all_its_gpus() -> None:
    gang, single = job(1, gpus=4, earlier_s=400), job(2, earlier_s=1500)
    assert ranked(Fair(600), gang, single) == [1, 2]
    assert ranked(Fair(600), job(1, gpus=4, earlier_s=500), single) == [2, 1]


def test_a_running_job_finishes_its_slice_and_not_more() -> None:
    assert ranked(Fair(600), job(1), running(2, "n1", ran_s=599)) == [2, 1]
    assert ranked(Fair(600), job(1), running(2, "n1", ran_s=600)) == [1, 2]


def test_the_order_is_looked_at_again_when_a_slice_ends() -> None:
    gang, single = running(1, "n1", gpus=2, ran_s=100), running(2, "n1", ran_s=550)
    assert Fair(600).rank(snapshot(gang, single)).stable_until_s == NOW_S + 50
    assert Fair(600).rank(snapshot(gang)).stable_until_s == NOW_S + 200
    assert Fair(600).rank(snapshot(job(1))).stable_until_s == float("inf")


def test_the_catalogue_has_slices_of_a_quantum() -> None:
    assert row("fair", catalog.PolicyOptions(quantum_s=60)).order == Fair(60)
