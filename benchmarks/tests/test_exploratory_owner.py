import numpy as np

from benchmarks.exploratory.workload import Owner
from benchmarks.tests.curve_builders import falling

OWNER = Owner(checks=10, first_check=2, behind=0.5, contender=0.9, patience=2, least_improvement=0.02)
STEADY = np.linspace(1.0, 0.0, 41)


def leaves(losses: np.ndarray, *siblings: np.ndarray, epochs: int = 40, owner: Owner = OWNER) -> float | None:
    best = np.min([owner.best_at_checks(sibling, epochs) for sibling in (losses, *siblings)], axis=0)
    return owner.leaves_at(losses, epochs, best)


def stalling(at: float) -> np.ndarray:
    """Falls like the steady one, and not any more from epoch 16 of 40 on."""
    return np.concatenate([np.linspace(1.0, at, 17), np.full(24, at)])


def test_a_job_that_goes_on_improving_is_left_alone() -> None:
    assert leaves(STEADY) is None
    assert leaves(np.linspace(1.0, 0.4, 41), STEADY) is None


def test_a_stalled_job_is_given_up_once_patience_is_over() -> None:
    assert leaves(stalling(0.6), stalling(0.52)) == 0.6
    patient = Owner(checks=10, first_check=2, behind=0.5, contender=0.9, patience=4, least_improvement=0.02)
    assert leaves(stalling(0.6), stalling(0.52), owner=patient) == 0.8


def test_a_job_that_gets_worse_has_stalled() -> None:
    worse = np.concatenate([np.linspace(1.0, 0.6, 17), np.linspace(0.6, 9.0, 24)])
    assert leaves(worse, stalling(0.52)) == 0.6


def test_a_contender_is_left_to_finish() -> None:
    assert leaves(stalling(0.6)) is None
    assert leaves(stalling(0.57), stalling(0.53)) is None


def test_a_job_far_behind_its_sweep_is_given_up_at_the_first_judged_look() -> None:
    slow = np.linspace(1.0, 0.55, 41)
    assert leaves(slow) is None
    assert leaves(slow, STEADY) == 0.2
    just_ahead = np.linspace(1.0, 0.49, 41)
    assert leaves(just_ahead, STEADY) is None


def test_a_diverged_job_is_given_up_at_the_next_look() -> None:
    assert leaves(STEADY[:16]) == 0.4  # reports end with epoch 15, which look 4 would have shown as 16
    assert leaves(STEADY[:17]) == 0.5
    assert leaves(STEADY[:1]) == 0.2


def test_trainings_of_different_length_compare_at_the_same_share_of_their_runs() -> None:
    short = Owner().best_at_checks(falling(0.0, 0.1, epochs=20), 20)
    assert short[5] == falling(0.0, 0.1, epochs=20)[10]
    assert short[10] == falling(0.0, 0.1, epochs=20)[20]
