"""The manager of a room: who ends it, and who looks after it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from wrappers import kernel_manager, mps, runtime_directory

# Its name is no UTF-8, as one in Chinese that Linux has cut to 15 bytes.
IGNORES_TERM = """
import pathlib, signal
pathlib.Path("/proc/self/comm").write_bytes(b"train-\\xe8\\xae")
signal.signal(15, signal.SIG_IGN)
print(flush=True)
signal.pause()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not end by SIGTERM."""
    child = subprocess.Popen([sys.executable, "-c", IGNORES_TERM], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_process_that_has_a_managers_old_number_is_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    for born in ("", " 1"):
        (tmp_path / "sexplkmd.pid").write_text(f"{process.pid}{born}")
        kernel_manager.stop(tmp_path)
        assert process.poll() is None


def test_a_process_that_has_an_mps_daemons_number_counts_as_one(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "control").touch()
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{process.pid}\n")
    assert mps.answering({mps.PIPE_VARIABLE: str(tmp_path)}) == tmp_path
    process.kill()
    process.wait()
    assert mps.answering({mps.PIPE_VARIABLE: str(tmp_path)}) is None


def test_a_number_that_was_not_written_ends_nobody(tmp_path: Path) -> None:
    """The file of a disk that was full, or of an `sxrun` that was killed."""
    (tmp_path / "sexplkmd.pid").touch()
    kernel_manager.stop(tmp_path)


def test_a_manager_that_does_not_end_is_killed(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_manager, "STOP_MS", 100)
    (tmp_path / "sexplkmd.pid").write_text(f"{process.pid} {kernel_manager.born_at(process.pid)}")
    kernel_manager.stop(tmp_path)
    assert not psutil.pid_exists(process.pid)


def test_a_manager_that_nobody_could_end_later_is_not_left_behind(tmp_path: Path) -> None:
    """As on a full disk."""
    program = tmp_path / "sexplkmd"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    (tmp_path / "sexplkmd.pid").mkdir()
    before = psutil.Process().children()  # of other tests
    with pytest.raises(IsADirectoryError):
        kernel_manager.start(tmp_path, "group", {"EXPLSCHED_KM": str(program)}, lambda: None)
    assert set(psutil.Process().children()) <= set(before)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[runtime_directory.RuntimeDirectory]:
    made = runtime_directory.RuntimeDirectory(tmp_path / "room")
    yield made
    made.close(lambda: None)


def watched(
    room: runtime_directory.RuntimeDirectory, looks: int, monkeypatch: pytest.MonkeyPatch, *, listens: bool
) -> list[Path]:
    """The rooms in which a manager is started until the watch gives up, or has looked so often."""
    started: list[Path] = []
    looked: list[Path] = []
    enough = threading.Event()

    def look(path: Path) -> bool:
        looked.append(path)
        if len(looked) == looks:
            enough.set()
        return listens

    def start(path: Path, *_: object) -> None:
        started.append(path)
        raise kernel_manager.ManagerError("dies at once")

    monkeypatch.setattr(kernel_manager, "LOOK_S", 0.001)
    monkeypatch.setattr(kernel_manager, "listens", look)
    monkeypatch.setattr(kernel_manager, "start", start)
    before = set(threading.enumerate())
    with kernel_manager.kept_alive(room, "group", os.environ, lambda: None):
        (thread,) = set(threading.enumerate()) - before
        while thread.is_alive() and not enough.wait(0.01):
            pass
    return started


def test_a_manager_that_always_dies_is_not_started_for_ever(
    room: runtime_directory.RuntimeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(watched(room, 100, monkeypatch, listens=False)) == kernel_manager.MOST_STARTS


def test_a_manager_that_answers_is_left_alone(
    room: runtime_directory.RuntimeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched(room, 100, monkeypatch, listens=True) == []


@pytest.mark.parametrize(("gpus", "others"), [("0", "1"), ("0,1", "0"), ("GPU-0a", "GPU-0b")])
def test_commands_of_a_job_on_other_gpus_have_a_room_of_their_own(gpus: str, others: str) -> None:
    def place(visible: str) -> Path:
        return runtime_directory.place({"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": visible})

    assert place(gpus) == place(gpus) != place(others)
