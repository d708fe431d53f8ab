"""What hyper-parameters promise: from trainings that have been seen, and from what is usual."""

from __future__ import annotations

import numpy as np
import pytest

from sched_policy.sweep.surrogate import promise, unusual
from tests.sched_policy.sweep.builders import sweep, trial


def test_hyper_parameters_of_any_kind_and_missing_ones_are_taken() -> None:
    odd = [
        trial(i, steps=4, params={"opt": "adam" if i % 2 else "sgd", "lr": None if i == 3 else i}) for i in range(1, 9)
    ]
    one = sweep(*odd, trial(9, params={"opt": "adam"}))
    found = promise(one, np.arange(8), np.arange(8.0))
    assert found is not None and found.shape == (9,) and np.isfinite(found).all()
    assert promise(sweep(*(trial(i, steps=4) for i in range(1, 9))), np.arange(8), np.arange(8.0)) is None


def test_parameters_that_only_running_trainings_tell_and_are_equal_make_no_difference() -> None:
    """sxrun tells all of its command's, `--steps=96` too; of those that wait only some are known."""
    rates = [10.0**-i for i in range(10)]
    told = [{"lr": rate, **({"steps": 96, "data": "here"} if i < 7 else {})} for i, rate in enumerate(rates)]
    both = [
        sweep(*(trial(i, steps=4 if i < 7 else 0, params=one) for i, one in enumerate(all_)))
        for all_ in (told, [{"lr": rate} for rate in rates])
    ]
    curves = sweep(*(trial(i, params={"steps": 96} if i < 7 else {}) for i in range(10)))
    assert (both[0].params, curves.params) == (("lr",), ())
    found, expected = (promise(one, np.arange(7), np.arange(7.0)) for one in both)
    assert found is not None and expected is not None
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["lr", "learning_rate", "optim.lr", "learningRate", "LR", "--learning-rate"])
def test_a_learning_rate_tells_more_than_another_hyper_parameter(name: str) -> None:
    def given(trial_id: int, rate: int, other: int, **fields: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return trial(trial_id, params={name: rate, "dropout": other}, **fields)

    # Both tell as much of who is ahead. Of two untried ones one has the rate of the best, the other its dropout.
    seen = [given(i, i, i, steps=4) for i in range(8)]
    one = sweep(*seen, given(8, 0, 7), given(9, 7, 0))
    promises = promise(one, np.arange(8), np.arange(8.0))
    assert promises is not None and promises[8] < promises[9]


@pytest.mark.parametrize("name", ["l1_ratio", "l2_norm", "lambda_l1", "weight_decay", "ml2", "reg"])
def test_what_is_no_penalty_in_the_loss_has_no_usual_range(name: str) -> None:
    assert not unusual(sweep(trial(1, params={name: 10.0}), trial(2, params={name: 1e-6}))).any()


def test_of_two_rates_of_which_results_say_as_much_the_usual_one_promises_more() -> None:
    """Four trainings in the middle of the sweep's ranks, good and bad alike; one more at either side."""
    shown = [trial(i, steps=4, params={"lr": 1e-5, "other": i % 2}) for i in range(8)]
    fresh = [trial(8, params={"lr": 1e-8, "other": 0}), trial(9, params={"lr": 1e-2, "other": 0})]
    promises = promise(sweep(*shown, *fresh), np.arange(8), np.array([0.0, 1, 3, 2, 4, 5, 7, 6]))
    assert promises is not None and promises[9] < promises[8] - 0.5


@pytest.mark.parametrize("rate", [0, -0.1, float("nan"), float("inf"), "0.1", True])
def test_a_rate_that_is_no_positive_number_is_neither_usual_nor_unusual(rate: object) -> None:
    assert unusual(sweep(trial(1, params={"lr": rate}), trial(2, params={"lr": 1e-6}))).tolist() == [0.0, 1.0]


def test_results_outweigh_what_is_usual() -> None:
    shown = [trial(i, steps=20, params={"lr": 10.0 ** (i - 8)}) for i in range(10)]  # the best has 1e-8, the last 10
    fresh = [trial(10, params={"lr": 3e-8}), trial(11, params={"lr": 3e-3})]
    promises = promise(sweep(*shown, *fresh), np.arange(10), np.arange(10.0))
    assert promises is not None and promises[10] < promises[11]


@pytest.mark.parametrize("name", ["l2", "l1_reg", "optim.regL2", "--kernel-l2"])
def test_a_penalty_that_is_no_number_is_not_unusual(name: str) -> None:
    assert not unusual(sweep(trial(1, params={name: True}), trial(2, params={name: None}))).any()
