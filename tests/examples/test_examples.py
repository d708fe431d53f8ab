"""Each example trains, reports, saves when asked and goes on from what it saved."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inference_gateway import services
from slurm_plugin.devcluster.machine import reserved
from tests.inference_gateway.rig import Replica, healthy, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Example:
    """`quick` makes a short run of it, `endless` one that does not end by itself within a test."""

    script: str
    needs: Sequence[str]
    quick: Sequence[str]
    endless: Sequence[str]
    launcher: Sequence[str] = ()


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
TWO = ("-m", "wrappers.sxrun", "--", sys.executable, *TORCHRUN)
TRAININGS = (
    Example("quickstart/train.py", (), ("--steps=20", "--step-s=0"), ("--steps=100000", "--step-s=0.01")),
    Example("pytorch_sweep/train.py", ("torch",), ("--epochs=3",), ("--epochs=100000",)),
    Example("pytorch_ddp/train.py", ("torch",), ("--steps=20",), ("--steps=1000000",), TWO),
    Example("lightning/train.py", ("torch", "lightning"), ("--epochs=3",), ("--epochs=100000",)),
    Example("huggingface/train.py", ("torch", "transformers", "accelerate"), ("--epochs=1",), ("--epochs=100000",)),
)


@pytest.fixture(params=TRAININGS, ids=lambda example: example.script)
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    missing = [package for package in found.needs if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{found.script} needs {', '.join(missing)}: pip install {' '.join(missing)}")
    return found


def start(example: Example, directory: Path, *more: str, sub_batches: int = 1) -> subprocess.Popen[bytes]:
    """In a directory of its own; reports go to `reports.jsonl` there."""
    environment = {
        **os.environ,
        "EXPLSCHED_SUB_BATCHES": str(sub_batches),
        "OMP_NUM_THREADS": "1",  # networks this small only wait for more
        "PYTHONPATH": str(ROOT),
        "EXPLSCHED_PROGRESS_FILE": str(directory / "reports.jsonl"),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    argv = [sys.executable, *example.launcher, str(EXAMPLES / example.script), *more]
    with (directory / "output").open("ab") as output:
        return subprocess.Popen(argv, cwd=directory, env=environment, stdout=output, stderr=output)


def end(process: subprocess.Popen[bytes]) -> None:
    """A launcher ends its workers when it is told to, and leaves them when it is killed."""
    process.terminate()
    process.wait(60)


def reports(directory: Path) -> list[dict[str, Any]]:
    path = directory / "reports.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def values(directory: Path) -> list[dict[str, Any]]:
    """The reports of a value, without those of hyper-parameters and events."""
    return [line for line in reports(directory) if "value" in line]


def wait_for(process: subprocess.Popen[bytes], directory: Path, event: str | None, patience_s: float = 300) -> None:
    """Until a report of a value, or the event of this name, is there."""
    deadline_s = time.monotonic() + patience_s
    while not any(line.get("event") == event and (event or "value" in line) for line in reports(directory)):
        assert process.poll() is None, (directory / "output").read_text()
        assert time.monotonic() < deadline_s, f"waited in vain for {event or 'a report'}"
        time.sleep(0.1)


def test_a_training_reports_a_loss_that_falls(example: Example, tmp_path: Path) -> None:
    process = start(example, tmp_path, *example.quick)
    assert process.wait(300) == 0, (tmp_path / "output").read_text()
    points = [line for line in reports(tmp_path) if line.get("metric") == "loss"]
    assert [line["step"] for line in points] == sorted(line["step"] for line in points)
    assert all(line["total_steps"] > points[0]["step"] for line in points)
    if "huggingface" not in example.script:  # which learns nothing in a second
        assert points[-1]["value"] < points[0]["value"]


def test_a_batch_in_parts_trains_as_the_whole_batch_does(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("it needs torch: pip install torch")
    (example,) = (one for one in TRAININGS if one.script.startswith("pytorch_sweep"))
    runs = {sub_batches: tmp_path / str(sub_batches) for sub_batches in (1, 3)}  # 64 is not a multiple of 3
    for directory in runs.values():
        directory.mkdir()
    training = [start(example, where, "--epochs=1", sub_batches=parts) for parts, where in runs.items()]
    assert [process.wait(300) for process in training] == [0, 0]
    whole, in_parts = ([line["value"] for line in reports(where)] for where in runs.values())
    assert len(whole) == 1
    assert in_parts == pytest.approx(whole, rel=1e-4)


def test_a_training_saves_when_asked_and_goes_on_from_there(example: Example, tmp_path: Path) -> None:
    process = start(example, tmp_path, *example.endless)
    try:
        wait_for(process, tmp_path, None)
        process.send_signal(signal.SIGUSR1)
        wait_for(process, tmp_path, "checkpoint")
        before = len(values(tmp_path))
        saved_step = next(line["step"] for line in reports(tmp_path) if line.get("event") == "checkpoint")
        deadline_s = time.monotonic() + 60
        while len(values(tmp_path)) == before:
            assert process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < deadline_s, "it saved and did not go on"
            time.sleep(0.1)
    finally:
        end(process)
    (tmp_path / "reports.jsonl").unlink()
    again = start(example, tmp_path, *example.endless)
    try:
        wait_for(again, tmp_path, None)
    finally:
        end(again)
    assert values(tmp_path)[0]["step"] > saved_step


def test_a_new_job_takes_no_former_clusters_checkpoint_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "line-1.json").write_text("[1.0, 1.0, 15]")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    quickstart = TRAININGS[0]
    assert start(quickstart, tmp_path, *quickstart.quick).wait(60) == 0
    assert next(line["step"] for line in reports(tmp_path) if "step" in line) == 0
    assert not (tmp_path / "line-1.json").exists()


def test_the_services_file_is_valid() -> None:
    section = services.load(EXAMPLES / "services.yaml")
    assert list(section.services) == ["tiny"]


def test_a_service_starts_where_only_our_commands_are_on_path(tmp_path: Path) -> None:
    """As in a job after each documented installation, whose python3 has no package of ours."""
    for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]:
        (tmp_path / name).symlink_to(Path(sys.prefix) / "bin" / name)
    command = services.load(EXAMPLES / "services.yaml").services["tiny"].replica.command
    with reserved(1) as (port,):
        argv = shlex.split(command.format(port=port))
        process = subprocess.Popen(argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path)
        try:
            wait_until(partial(healthy, Replica("tiny", port, process)))
        finally:
            process.kill()
            process.wait()


def test_every_example_is_in_the_list() -> None:
    text = (EXAMPLES / "README.md").read_text()
    present = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    assert present == {name for name in present if f"({name}" in text}
