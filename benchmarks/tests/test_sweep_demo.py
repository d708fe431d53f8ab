"""The demo's figures, from runs that are written down here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.sweep_demo import __main__ as demo
from benchmarks.sweep_demo import report
from benchmarks.sweep_demo.run import ASHA, EXPLSCHED, SLURM_ALONE, Arm, Curve, Outcome

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


def test_where_no_cluster_can_be_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("slurm_plugin.devcluster.lifecycle.os.geteuid", lambda: 1000)
    done = CliRunner().invoke(demo.main, ["--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: must be root, is uid 1000")


def test_what_was_never_reached_is_null_in_json() -> None:
    figures = json.loads(json.dumps(report.figures([ROUND]), allow_nan=False))
    assert figures["asha_over_explsched"]["gpu_seconds_to_best"]["each"] == [None]
    assert figures["slurm_alone_over_explsched"]["gpu_seconds_to_best"]["median"] == 2.0


def test_the_summary_says_who_needs_less() -> None:
    slurm, slurm_time, asha, _ = report.summary([ROUND])
    assert slurm == "GPU-seconds to the best model, Slurm alone / explsched: min 2.00, median 2.00 (each: 2.00)"
    assert slurm_time.startswith("time to the best model, Slurm alone / explsched: min 2.00")
    assert asha.endswith("ASHA / explsched: min not reached, median not reached (each: not reached)")


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = dict(zip(((1, arm.name) for arm in ARMS), ROUND.outcomes, strict=True))
    ran: list[tuple[int, str]] = []

    def run(_scratch: object, arm: Arm, _sweep: str, seed: int, _tell: object) -> Outcome:
        if len(ran) == 2 and not resumed:
            raise KeyboardInterrupt
        ran.append((seed, arm.name))
        return left[seed, arm.name]

    monkeypatch.setattr(demo, "run", run)
    resumed = False
    words = ["--out", str(tmp_path)]
    stopped = CliRunner().invoke(demo.main, words)
    assert stopped.exit_code == 130
    assert "2 of 3 runs" in stopped.output
    resumed = True
    done = CliRunner().invoke(demo.main, [*words, "--resume"])
    assert done.exit_code == 0, done.output
    assert ran == list(left)
    assert json.loads((tmp_path / "report.json").read_text()) == {
        "sweep": "coarse",
        **json.loads(json.dumps(report.figures([ROUND]))),
    }
    CliRunner().invoke(demo.main, words)
    assert ran == [*left, *left]  # without --resume nothing old counts
