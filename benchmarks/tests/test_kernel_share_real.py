"""The measurement on a real GPU, as far as it goes without one: its figures, its arguments, its words."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.kernel_share_arms import ARMS, ArmError, Setup, Side, base_environment, checked, run, without_mps
from benchmarks.kernel_share_figures import Report, arm_figures, summary
from benchmarks.kernel_share_load import arrivals
from benchmarks.kernel_share_real import main


def reports(latency_ms: float, steps: float, requests: int = 100) -> Report:
    served = {"latencies_ms": [latency_ms] * requests, "requests": requests, "wall_s": 10.0}
    return {"inference": served, "training": {"rate": steps}}


def alone(latency_ms: float, steps: float) -> dict[str, Report]:
    both = reports(latency_ms, steps)
    return {"inference alone": {"inference": both["inference"]}, "training alone": {"training": both["training"]}}


def test_figures_are_ratios_within_a_round() -> None:
    rounds = [
        {**alone(10.0, 4.0), "explsched": reports(11.0, 3.0), "mps": reports(20.0, 3.6)},
        {**alone(20.0, 8.0), "explsched": reports(21.0, 6.4), "mps": reports(60.0, 7.2)},
        {**alone(10.0, 4.0), "explsched": reports(10.6, 3.1, requests=50), "mps": reports(25.0, 3.6)},
    ]
    found = summary(rounds, load=0.3)
    assert found["explsched"] == {
        "hp_p99_ratio": 1.06,
        "hp_p50_ratio": 1.06,
        "be_retained": 0.775,
        "total_throughput": 1.05,  # of 0.3 + 0.75, 0.3 + 0.8 and 0.15 + 0.775
    }
    assert found["mps"]["be_retained"] == 0.9
    assert "time-slicing" not in found


def test_overheads_compare_the_training_with_itself() -> None:
    rounds = [{**alone(1, 100.0), "training managed": {"training": {"rate": 99.0}}}]
    assert summary(rounds, 0.3) == {"step_overhead_managed": 0.0101}
    assert arm_figures({"training": {"rate": 2.0}}) == {"be_steps_per_s": 2.0}


def test_every_arm_sees_the_same_arrivals() -> None:
    drawn = list(arrivals(rate=50, seconds=100, seed=7))
    assert drawn == list(arrivals(rate=50, seconds=100, seed=7))
    assert drawn != list(arrivals(rate=50, seconds=100, seed=8))
    assert max(drawn) < 100
    # Poisson: 5,000 arrivals within four standard deviations; the gaps' mean equals their deviation.
    assert abs(len(drawn) - 5000) < 4 * 5000**0.5
    assert np.std(np.diff(drawn)) == pytest.approx(np.mean(np.diff(drawn)), rel=0.1)


def test_without_a_gpu_it_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: it would measure")
    done = CliRunner().invoke(main, ["--json"])
    assert done.exit_code == 1
    assert "no CUDA GPU can be used here" in done.output
    assert "benchmarks.kernel_share --virtual" in done.output


@pytest.mark.parametrize(
    "arguments", [["--load", "1.5"], ["--rounds", "0"], ["--inference", "gpt"], ["--profiles", "/no"]]
)
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    models = {"inference": "tiny", "training": "tiny"}
    return Setup(models, "cpu", 0.2, 20.0, tmp_path, tmp_path / "none.so", base_environment(tmp_path))


def test_an_arm_runs_and_reports(setup: Setup) -> None:
    pytest.importorskip("torch")
    found = run(ARMS["inference alone"], setup, 1, {"OMP_NUM_THREADS": "1"})["inference"]
    assert found["requests"] == len(found["latencies_ms"]) == len(list(arrivals(20.0, 0.2, 1)))
    assert (found["mps"], found["gate"]) == (False, None)


def test_an_arm_that_does_not_get_what_it_asks_for_is_no_measurement() -> None:
    [_, training] = ARMS["explsched"]
    assert checked(training, {"mps": True, "gate": {}}) == {"mps": True, "gate": {}}
    with pytest.raises(ArmError, match="the training ran without CUDA MPS"):
        checked(training, {"mps": False, "gate": {}})
    with pytest.raises(ArmError, match="the training ran without a kernel manager"):
        checked(training, {"mps": True, "gate": None})
    assert checked(Side("training"), {"mps": False, "gate": None})


def test_without_mps_the_other_arms_are_left() -> None:
    left = without_mps(ARMS)
    assert set(ARMS) - set(left) == {"mps"}
    assert left["explsched"] == (
        Side("inference", ("--share", "high")),
        Side("training", ("--share", "best-effort")),
    )
    assert left["training preloaded"] == ARMS["training preloaded"]


def test_a_worker_that_fails_is_named(setup: Setup) -> None:
    with pytest.raises(ArmError, match="the training ended with status 1 before it was ready"):
        run([Side("training")], setup, 1, {"PYTHONHOME": "/nowhere"})  # it cannot start
