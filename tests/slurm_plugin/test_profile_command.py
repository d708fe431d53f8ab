"""Requests and limits found by few trials: against exhaustive search, and with real programs under sxrun."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

from kernel_intercept.profile.requests import UNHARMED, WHOLE, RequestSearch, ShareTrial
from kernel_intercept.profile.store import ProfileError
from slurm_plugin.cli.profile import Program, profile

# A GPU whose kernels have a serial part, a part that shrinks with the share up to a knee, and one per item.
PROGRAM = """
import json, os, sys
fixed_s, item_s, knee = map(float, sys.argv[1:4])
batch, share = int(os.environ["EXPLSCHED_BATCH"]), float(os.environ.get("EXPLSCHED_LIMIT", "1"))
share = share / 1000 if share > 1 else share
latency_s = fixed_s + item_s * batch / min(share, knee * batch / (1 + batch))
print("warm", flush=True)
print(json.dumps({"latency_s": latency_s, "throughput": batch / latency_s}))
"""
LARGEST = 32
STEP = 5


def model(fixed_s: float, item_s: float, knee: float, batch: int, share_percent: int) -> ShareTrial:
    latency_s = fixed_s + item_s * batch / min(share_percent / 100, knee * batch / (1 + batch))
    return ShareTrial(batch, share_percent, latency_s, batch / latency_s)


def grid(fixed_s: float, item_s: float, knee: float) -> list[ShareTrial]:
    batches = [2**i for i in range(int(math.log2(LARGEST)) + 1)]
    return [model(fixed_s, item_s, knee, batch, share) for batch in batches for share in range(STEP, 101, STEP)]


GPUS = st.tuples(st.floats(0.0005, 0.02), st.floats(0.0002, 0.004), st.floats(0.2, 1.0))


@given(GPUS, st.floats(0.01, 0.2))
@example(gpu=(0.009117131536861854, 0.0002, 1.0), qos_s=0.01)  # a serial part nearly as long as the bound
def test_a_service_gets_nearly_the_best_there_is_for_a_fifth_of_the_trials(
    gpu: tuple[float, float, float], qos_s: float
) -> None:
    search = RequestSearch(lambda batch, share: model(*gpu, batch, share), STEP)
    every = grid(*gpu)
    suiting = [trial for trial in every if trial.latency_s <= qos_s]
    if not suiting:
        with pytest.raises(ProfileError, match="on the whole GPU, more than the bound"):
            search.inference(qos_s, LARGEST)
        return
    found = search.inference(qos_s, LARGEST)
    chosen = model(*gpu, found.batch, found.request_percent)
    assert chosen.latency_s <= qos_s
    assert chosen.per_share >= 0.95 * max(trial.per_share for trial in suiting)
    assert len(search.trials) <= 0.2 * len(every)
    full = model(*gpu, found.batch, 100).throughput
    assert model(*gpu, found.batch, found.limit_percent).throughput >= UNHARMED * full
    if found.limit_percent > found.request_percent:
        assert model(*gpu, found.batch, found.limit_percent - STEP).throughput < UNHARMED * full


@given(GPUS, st.floats(0.1, 1.0))
def test_a_training_gets_the_least_share_that_keeps_its_pace(gpu: tuple[float, float, float], kept: float) -> None:
    search = RequestSearch(lambda batch, share: model(*gpu, batch, share), STEP)
    found = search.training(kept)
    full = model(*gpu, 1, 100).throughput
    suiting = [share for share in range(STEP, 101, STEP) if model(*gpu, 1, share).throughput >= kept * full]
    assert found.request_percent == min(suiting)
    assert len(search.trials) <= 11


def saturating(batch: int, share_percent: int) -> ShareTrial:
    """55 % of the GPU are as good as all of it; 50 % do as a limit, but are too slow for the bound."""
    latency_s = 0.0495 if share_percent >= 55 else 0.0502 if share_percent >= 50 else 0.0505 * 50 / share_percent
    latency_s *= 0.5 + batch / 16
    return ShareTrial(batch, share_percent, latency_s, batch / latency_s)


def test_a_limit_is_never_below_the_request() -> None:
    """Shares below the request were tried before, and did as limits."""
    service = RequestSearch(saturating).inference(0.05, 8)
    assert (service.request_percent, service.limit_percent) == (55, 55)
    training = RequestSearch(saturating).training(0.99)
    assert (training.request_percent, training.limit_percent) == (55, 55)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bench.py"
    path.write_text(PROGRAM, encoding="ascii")
    return path


def call(program: Path, *options: str, gpu: tuple[float, float, float] = (0.002, 0.001, 0.6)) -> Result:
    command = [sys.executable, str(program), *map(str, gpu)]
    return CliRunner().invoke(profile, [*options, "--", *command])


def test_a_service_is_run_under_sxrun_with_the_share_that_is_tried(program: Path, tmp_path: Path) -> None:
    done = call(
        program, "inference", "--qos=0.03", "--largest-batch=8", "--step=10", f"--csv={tmp_path}/s.csv", "--json"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    every = [model(0.002, 0.001, 0.6, batch, share) for batch in (1, 2, 4, 8) for share in range(10, 101, 10)]
    best = max((trial for trial in every if trial.latency_s <= 0.03), key=lambda trial: trial.per_share)
    assert (found["batch"], found["request_percent"]) == (best.batch, best.share_percent)
    with (tmp_path / "s.csv").open(newline="", encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found["trials"])
    for row in rows:
        truth = model(0.002, 0.001, 0.6, int(row["batch"]), int(row["share_percent"]))
        assert float(row["latency_s"]) == pytest.approx(truth.latency_s)


def test_what_is_printed_is_what_jobs_and_services_take(program: Path) -> None:
    done = call(program, "training", "--step=25", "--keep=0.5", gpu=(0.0001, 0.001, 1.0))
    assert done.exit_code == 0, done.output
    assert "of a job:      --request 0.25 --limit 0.5" in done.stdout
    assert "services.yaml: kernel: {request: 0.25, limit: 0.5}" in done.stdout


def test_a_file_in_a_missing_directory_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    options = ["training", f"--csv={tmp_path}/none/a.csv", "--", "touch", str(tmp_path / "tried")]
    done = CliRunner().invoke(profile, options)
    assert (done.exit_code, (tmp_path / "tried").exists()) == (2, False)
    assert f"directory {tmp_path}/none does not exist" in done.stderr


def test_what_was_found_is_printed_though_the_file_cannot_be_written(program: Path) -> None:
    """As where its file system has become full meanwhile."""
    done = call(program, "training", "--step=25", "--csv=/dev/full", gpu=(0.0001, 0.001, 1.0))
    assert "/dev/full: cannot be written: No space left on device" in str(done.exception)
    assert "of a job:      --request" in done.stdout


@pytest.mark.parametrize(("gpu", "is_doubted"), [((0.002, 0.001, 0.6), False), ((0.002, 0.0, 1.0), True)])
def test_a_share_that_changes_nothing_is_doubted(
    program: Path, gpu: tuple[float, float, float], *, is_doubted: bool
) -> None:
    """A command that uses no GPU, or whose kernels nothing intercepts, is as fast with any share."""
    done = call(program, "training", "--step=25", gpu=gpu)
    assert done.exit_code == 0, done.output
    assert ("25 % of the GPU is as fast as all of it" in done.stderr) == is_doubted


def test_notices_of_sxrun_are_told_once_and_all_of_the_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sxrun = tmp_path / "sxrun"
    text = "echo sxrun: no MPS >&2; echo step >&2; echo '{\"throughput\": 1}'"
    sxrun.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    sxrun.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # sxrun is sought beside it
    tried = Program(["true"], "sms", 60.0)
    for _ in range(3):
        tried.run(1, WHOLE)
    told = capsys.readouterr().err.splitlines()
    assert sorted(told) == ["step", "step", "step", "sxrun: no MPS"]


@pytest.mark.parametrize(
    ("text", "timeout_s", "words"),
    [
        ("print('done')", 60, "batch 1 at 100 %: printed no line such as"),
        ("print('{\"throughput\": -1}')", 60, "Expected `float` > 0"),
        ("raise SystemExit(3)", 60, "ended with status 3"),
        ("import time; time.sleep(60)", 3, "not done after 3 s"),
    ],
)
def test_programs_that_do_not_measure(program: Path, text: str, timeout_s: int, words: str) -> None:
    program.write_text(text, encoding="ascii")
    done = call(program, "training", f"--timeout={timeout_s}")
    assert isinstance(done.exception, ProfileError)
    assert words in str(done.exception)


def test_a_program_that_does_not_heed_its_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """The command waited for it, however long that took."""
    script = tmp_path / "train.sh"
    script.write_text(f"trap '' TERM\n(sleep 30; touch {tmp_path}/lived)\n", encoding="ascii")
    done = CliRunner().invoke(profile, ["training", "--timeout=1", "--", "bash", str(script)])
    assert "not done after 1 s" in str(done.exception)
    assert not (tmp_path / "lived").exists()
