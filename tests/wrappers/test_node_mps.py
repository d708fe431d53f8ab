"""MPS that slurmd's prolog and epilog start and end: one daemon for all jobs of a user on the same GPUs."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wrappers.gpu_node import GpuNode, gpu_node
from wrappers import mps, node_mps


@pytest.fixture
def node() -> Iterator[GpuNode]:
    with gpu_node() as made:
        yield made


def variables(node: GpuNode, job: int, gpus: str = "3") -> dict[str, str]:
    return {
        "EXPLSCHED_NODE_MPS": str(node.directory / "node"),
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_UID": str(os.geteuid()),
        "SLURM_JOB_GPUS": gpus,
    }


def slurmd(node: GpuNode, action: str, job: int, **other: str) -> str:
    """Run the prolog or epilog; what it says. It never fails."""
    done = subprocess.run(
        [sys.executable, "-m", "wrappers.node_mps", action],
        env={**node.environment, **variables(node, job), **other},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr


def room(node: GpuNode) -> node_mps.ServerPlace:
    found = node_mps.place(variables(node, 1), os.geteuid())
    assert found is not None
    return found


def daemon(node: GpuNode) -> int:
    return int((room(node).pipes / "nvidia-cuda-mps-control.pid").read_text())


def runs(node: GpuNode) -> bool:
    return bool(mps.answering(room(node).variables()))


def test_the_first_job_starts_it_and_the_last_ends_it(node: GpuNode) -> None:
    assert slurmd(node, "prolog", 1) == ""
    first = daemon(node)
    assert slurmd(node, "prolog", 2) == ""
    assert daemon(node) == first
    assert slurmd(node, "epilog", 1) == ""
    assert runs(node)
    assert slurmd(node, "epilog", 2) == ""
    assert not runs(node)


def test_it_sees_the_gpus_of_the_jobs_and_is_its_users_alone(node: GpuNode) -> None:
    assert slurmd(node, "prolog", 1, SLURM_JOB_GPUS="3,5") == ""
    where = node_mps.place(variables(node, 1, "3,5"), os.geteuid())
    assert where is not None
    pid = int((where.pipes / "nvidia-cuda-mps-control.pid").read_text())
    assert b"CUDA_VISIBLE_DEVICES=3,5\0" in Path(f"/proc/{pid}/environ").read_bytes()
    os.kill(pid, signal.SIGKILL)
    assert stat.S_IMODE(where.pipes.stat().st_mode) == 0o700
    assert where.pipes.stat().st_uid == os.geteuid()
    assert not runs(node)  # that of other GPUs is another one


def test_one_that_was_killed_is_started_with_the_next_job(node: GpuNode) -> None:
    slurmd(node, "prolog", 1)
    first = daemon(node)
    os.kill(first, signal.SIGKILL)
    (room(node).pipes / "control").unlink()  # the real one removes it, or its next start does
    assert slurmd(node, "prolog", 2) == ""
    assert daemon(node) != first
    slurmd(node, "epilog", 1)
    assert runs(node)
    slurmd(node, "epilog", 2)
    assert not runs(node)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [fifo, endless])
def test_what_a_user_puts_into_his_directory_holds_up_no_node(node: GpuNode, put: Callable[[Path], None]) -> None:
    """Slurmd's prolog looks there as root."""
    slurmd(node, "prolog", 1)
    told, first = room(node).pipes / "nvidia-cuda-mps-control.pid", daemon(node)
    told.unlink()
    put(told)
    try:
        assert slurmd(node, "prolog", 2) == ""
    finally:
        os.kill(first, signal.SIGKILL)


def test_a_fault_is_told_and_takes_no_node_out_of_service(node: GpuNode) -> None:
    nothing = node.directory / "nothing"
    nothing.mkdir()
    assert "nvidia-cuda-mps-control" in slurmd(node, "prolog", 1, PATH=str(nothing))
    assert "nobody-at-all" in slurmd(node, "prolog", 1, SLURM_JOB_UID="nobody-at-all")
    assert slurmd(node, "prolog", 1, SLURM_JOB_GPUS="") == ""
    assert not runs(node)


def test_sxrun_uses_it_and_leaves_it_to_the_others(node: GpuNode) -> None:
    slurmd(node, "prolog", 7)
    try:
        job = variables(node, 7) | {"CUDA_VISIBLE_DEVICES": "3", "SLURM_SHARDS_ON_NODE": "1"}
        done = node.sxrun("--share", "best-effort", "--mps", "--", "env", **job)
        given = done.variables()
        assert (done.status, done.err) == (0, "")
        assert given["CUDA_MPS_PIPE_DIRECTORY"] == str(room(node).pipes)
        assert given["CUDA_VISIBLE_DEVICES"] == "0"  # the daemon numbers its GPUs from 0
        assert runs(node)
    finally:
        slurmd(node, "epilog", 7)
    assert not runs(node)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in node.sxrun("--share", "best-effort", "--", "env", **job).variables()
