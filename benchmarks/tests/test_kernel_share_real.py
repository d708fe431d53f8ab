"""The measurement on a real GPU, as far as it goes without one: its figures, its arguments, its words."""

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import kernel_share_arms, kernel_share_real
from benchmarks.kernel_share_arms import ARMS, ArmError, Setup, Side, Worker, base_environment, checked, outputs, run
from benchmarks.kernel_share_figures import percentiles, with_ratios
from benchmarks.kernel_share_load import arrivals, run_closed_loop, serve_open_loop
from benchmarks.kernel_share_real import main

_STORED = Path(__file__).parents[1] / "results/kernel_share_h100.json"


def test_percentiles_are_of_all_times() -> None:
    found = percentiles("service", [float(ms) for ms in range(101)])
    assert found == {"service_p50_ms": 50, "service_p90_ms": 90, "service_p95_ms": 95, "service_p99_ms": 99}
    assert percentiles("service", []) == {}


def test_each_ratio_has_its_base() -> None:
    slices = {
        "training_alone": {"rate": 40.0},
        "alone": {"requests": 9, "service_p99_ms": 1.0, "mps": False},
        "both": {"requests": 9, "service_p99_ms": 4.0, "mps": False},
        "training": {"rate": 10.0},
    }
    mps = {"alone": {"service_p99_ms": 1.25}, "both": {"service_p99_ms": 5.0}, "training": {"rate": 30.0}}
    ours = {"ready_s": 2.0, "both": {"service_p99_ms": 1.5}, "training": {"rate": 20.0}}
    found = with_ratios({"time slices": slices, "mps": mps, "explsched": ours, "other": {"failed": "why"}})
    assert found["explsched"] == ours | {
        "ratios": {
            "server_over_alone": {"service_p99": 1.5},
            "server_over_alone_under_mps": {"service_p99": 1.2},
            "training_over_alone": {"rate": 0.5},
            "training_over_mps": {"rate": 0.6667},
        }
    }
    assert found["time slices"]["ratios"]["server_over_alone"] == {"service_p99": 4.0}
    assert found["other"] == {"failed": "why", "ratios": {}}
    assert with_ratios({"mps": mps})["mps"]["ratios"].keys() == {"server_over_alone_under_mps", "training_over_mps"}


def test_stored_ratios_are_those_of_the_stored_figures() -> None:
    stored = json.loads(_STORED.read_text())
    for arms in (stored["arms"], stored["eager"]["arms"]):
        assert with_ratios(arms) == arms


def test_every_arm_sees_the_same_arrivals() -> None:
    drawn = list(arrivals(rate=50, seconds=100))
    assert drawn == list(arrivals(rate=50, seconds=100))
    assert max(drawn) < 100
    # Poisson: 5,000 arrivals within four standard deviations; the gaps' mean equals their deviation.
    assert abs(len(drawn) - 5000) < 4 * 5000**0.5
    assert np.std(np.diff(drawn)) == pytest.approx(np.mean(np.diff(drawn)), rel=0.1)


def test_times_from_arrival_count_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [7.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def wait(seconds: float) -> bool:
        now_s[0] += max(0.0, seconds)
        return len(served) < 3

    def serve() -> None:
        served.append(now_s[0])
        now_s[0] += 10.0

    served: list[float] = []
    found = serve_open_loop(serve, 1.0, 100.0, wait)
    first, second, third, *_ = arrivals(1.0, 100.0)
    assert served == pytest.approx([7 + first, 17 + first, 27 + first])
    assert (found["requests"], found["service_p50_ms"], found["service_p99_ms"]) == (3, 10_000, 10_000)
    assert found["arrival_p50_ms"] == pytest.approx(1e3 * (20 + first - second), abs=0.001)
    longest_ms = 1e3 * (30 + first - third)
    assert found["arrival_p50_ms"] < found["arrival_p99_ms"] <= longest_ms


# The end comes by seconds; by a line, in the fifth unit; in the only one.
@pytest.mark.parametrize(("before_end", "rate"), [(100, 1.25), (4, 1.25), (0, 10.0)])
def test_work_beside_nothing_does_not_count(monkeypatch: pytest.MonkeyPatch, before_end: int, rate: float) -> None:
    now_s, done = [0.0], [0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def work() -> None:
        done[0] += 1
        now_s[0] += 8.0 if done[0] <= before_end else 1.0  # the last one has the device to itself

    assert run_closed_loop(work, 10, 60.0, lambda _: done[0] <= before_end) == {"rate": rate}
    assert done[0] == min(8, before_end + 1)


def test_without_a_gpu_it_says_so() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        done = CliRunner().invoke(main, ["--json"])
        assert done.exit_code == 1
        assert "no NVIDIA GPU can be used here" in done.output
        assert "benchmarks.kernel_share --virtual" in done.output
    else:
        pytest.skip("this machine has a GPU: it would measure")


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("EXPLSCHED_KM", "/nowhere/manager")
    models = {"inference": "tiny", "training": "tiny"}
    return Setup(models, "cpu", eager=True, seconds=0.6, environment=base_environment(tmp_path))


def test_arms_run_and_one_that_cannot_says_why(setup: Setup, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out.json"
    words = ["--cpu", "--json", "--seconds", "3", "--inference", "tiny", "--training", "tiny", "--eager"]
    done = CliRunner().invoke(main, [*words, "--without-mps", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout == out.read_text()
    result = json.loads(done.stdout)
    assert result["device"].startswith("cpu")
    slices = result["arms"]["time slices"]
    assert result["requests_per_s"] == pytest.approx(0.3 * slices["capacity"]["rate"])
    # A machine that is slow for a moment gets a rate at which the first request comes after the end.
    arrived = {
        phase: len(list(arrivals(result["requests_per_s"], seconds))) for phase, seconds in (("alone", 2), ("both", 3))
    }
    for phase, requests in arrived.items():
        assert slices[phase]["requests"] == requests
        assert (slices[phase]["mps"], slices[phase]["gate"]) == (False, None)
        if requests:
            assert slices[phase]["arrival_p50_ms"] >= slices[phase]["service_p50_ms"] > 0
    assert slices["ratios"].keys() - {"server_over_alone"} == {"training_over_alone"}
    assert ("server_over_alone" in slices["ratios"]) == all(arrived.values())
    for name in ("explsched without mps", "outputs"):
        assert "the kernel manager is not at /nowhere/manager" in result["arms"][name]["failed"]


def test_it_keeps_what_it_measured_from_the_first_arm_on(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    arms = iter([{"capacity": {"rate": 50.0}, "training": {"rate": 2.0}}])
    monkeypatch.setattr(kernel_share_real, "run", lambda *_: next(arms))  # the second one ends the program
    done = CliRunner().invoke(main, ["--cpu", "--json", "--out", str(out)])
    assert isinstance(done.exception, StopIteration)
    kept = json.loads(out.read_text())
    assert kept["arms"]["time slices"]["training"] == {"rate": 2.0}
    assert kept["requests_per_s"] == 15.0


def test_a_deterministic_training_gives_the_same_digest_each_time(setup: Setup) -> None:
    pytest.importorskip("torch")
    with closing(Worker(Side("outputs"), setup)) as worker:
        worker.hear()
        first, again, longer = (worker.ask(steps)["digests"]["eager"] for steps in ("1", "1", "2"))
    assert first == again != longer


class Answering:
    """A worker whose digest is the training's model beside a server, under sxrun."""

    def __init__(self, side: Side, setup: Setup) -> None:
        self.digest = "tiny" if not side.options else setup.models["training"]

    def ask(self, *_: str) -> dict[str, object]:
        return {"digests": self.digest}

    hear = tell = close = ask


@pytest.mark.parametrize("other", ["tiny", "huge"])
def test_outputs_beside_the_server_are_compared(setup: Setup, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setattr(kernel_share_arms, "Worker", Answering)
    monkeypatch.setattr(kernel_share_arms, "check_installed", lambda *_: None)
    found = outputs(ARMS["explsched"], replace(setup, models={"training": other}), 20.0)
    assert found == {"alone": {"digests": "tiny"}, "beside": {"digests": other}, "equal": other == "tiny"}
    assert "failed" in outputs(ARMS["explsched"], setup, None)


def test_an_arm_that_does_not_get_what_it_asks_for_is_no_measurement() -> None:
    [_, training] = ARMS["explsched"]
    assert checked(training, {"mps": True, "gate": {"waits": 0}})
    for found, words in (
        ({"mps": False, "gate": {"waits": 0}}, "the training ran without CUDA MPS"),
        ({"mps": True, "gate": None}, "the training ran without a kernel manager"),
        ({"mps": True, "gate": {}}, "the training ran without its kernels managed"),
        ({"failed": "OutOfMemoryError: 80 GiB"}, "the training failed: OutOfMemoryError"),
    ):
        with pytest.raises(ArmError, match=words):
            checked(training, found)
    assert checked(Side("training"), {"mps": False, "gate": None})


def test_a_worker_that_fails_is_named(setup: Setup) -> None:
    environment = {**setup.environment, "PYTHONHOME": "/nowhere"}  # it cannot start
    found = run(ARMS["time slices"], replace(setup, environment=environment), None)
    assert found["failed"].startswith("the inference ended (status 1)")
