"""The demo's figures, from runs that are written down here."""

from __future__ import annotations

import json

import pytest

from benchmarks.sweep_demo import report
from benchmarks.sweep_demo.run import ASHA, EXPLSCHED, SLURM_ALONE, Curve, Outcome

INFINITY = float("inf")


def outcome(*losses: float) -> Outcome:
    """One sample every second and 10 GPU-seconds; the total reduction is what the best loss has fallen."""
    seconds = tuple(float(n) for n in range(1, len(losses) + 1))
    fallen = tuple(2.0 - min(loss, 2.0) for loss in losses)
    return Outcome(Curve(seconds, tuple(10.0 * s for s in seconds), fallen, losses), 1, 0, 0, 0)


ARMS = (SLURM_ALONE, ASHA, EXPLSCHED)
ROUND = report.Round(1, ARMS, [outcome(2.0, 1.5, 1.2, 1.0), outcome(INFINITY, 1.5), outcome(2.0, 1.005)])


def test_the_best_is_reached_within_a_hundredth_of_what_any_arm_found() -> None:
    assert [ROUND.to_best(arm).gpu_s for arm in ARMS] == [40.0, INFINITY, 20.0]
    assert [ROUND.to_best(arm).elapsed_s for arm in ARMS] == [4.0, INFINITY, 2.0]


def test_regret_is_the_mean_until_slurm_alone_is_done() -> None:
    """The loss of a sample holds until the next one; a run that has ended keeps its last."""
    assert ROUND.mean_regret(SLURM_ALONE) == pytest.approx((1 + 1 + 0.5 + 0.2) / 4)
    assert ROUND.mean_regret(EXPLSCHED) == pytest.approx((1 + 1 + 0.005 + 0.005) / 4)


def test_what_was_never_reached_is_null_in_json() -> None:
    figures = json.loads(json.dumps(report.figures([ROUND]), allow_nan=False))
    assert figures["asha_over_explsched"]["gpu_seconds_to_best"]["each"] == [None]
    assert figures["slurm_alone_over_explsched"]["gpu_seconds_to_best"]["median"] == 2.0
