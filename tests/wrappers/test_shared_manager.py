"""Jobs on shards of one GPU have one kernel manager together, whichever of them ends or is killed first."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wrappers.gpu_node import GpuNode, gpu_node
from wrappers.runtime_directory import place, shared_place

COMMAND = ("--share", "best-effort", "--", "sh", "-c", 'echo "$EXPLSCHED_KM_SOCKET"; read -r _')


@pytest.fixture
def node() -> Iterator[GpuNode]:
    with gpu_node() as made:
        yield made


@pytest.fixture
def on_shards(node: GpuNode) -> Iterator[dict[str, str]]:
    """The environment of jobs on one GPU; its room is in /tmp, whatever is left of it goes."""
    variables = {"SLURM_SHARDS_ON_NODE": "1", "SLURM_JOB_GPUS": "3", "SLURMD_NODENAME": node.directory.name}
    yield variables
    room = shared_place(variables)
    assert room is not None
    shutil.rmtree(room, ignore_errors=True)


def job(node: GpuNode, variables: dict[str, str], job_id: int) -> subprocess.Popen[str]:
    return node.start(*COMMAND, **variables, SLURM_JOB_ID=str(job_id))


def socket_of(running: subprocess.Popen[str]) -> Path:
    assert running.stdout is not None
    return Path(running.stdout.readline().strip())


def environment_of(running: subprocess.Popen[str]) -> dict[str, str]:
    assert running.stdout is not None
    lines = iter(running.stdout.readline, "\n")
    return dict(line.rstrip("\n").split("=", 1) for line in lines)


def end(running: subprocess.Popen[str]) -> str:
    _, err = running.communicate("\n")
    assert running.returncode == 0
    return err


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def starts(node: GpuNode) -> int:
    return sum(line.startswith("manager starts") for line in node.log())


def test_the_first_to_end_leaves_the_manager_to_the_others(node: GpuNode, on_shards: dict[str, str]) -> None:
    first, second = job(node, on_shards, 1), job(node, on_shards, 2)
    room = socket_of(first).parent.parent
    assert socket_of(second).parent.parent == room == shared_place(on_shards)
    end(first)
    assert (starts(node), "manager ends" in node.log()) == (1, False)
    end(second)
    assert "manager ends" in node.log()
    assert not room.exists()
    assert node.rooms() == []


def test_a_manager_that_is_killed_is_started_again(node: GpuNode, on_shards: dict[str, str]) -> None:
    running = job(node, on_shards, 1)
    room = socket_of(running).parent.parent
    os.kill(int((room / "sexplkmd.pid").read_text().split()[0]), signal.SIGKILL)
    until(lambda: starts(node) == 2)
    end(running)
    assert node.log()[-1] == "manager ends"
    assert not room.exists()


def test_without_shards_a_job_has_its_own(node: GpuNode, on_shards: dict[str, str]) -> None:
    whole = {key: value for key, value in on_shards.items() if key != "SLURM_SHARDS_ON_NODE"}
    running = job(node, whole, 1)
    assert socket_of(running).parent.parent == place({**node.environment, "SLURM_JOB_ID": "1"})
    end(running)


def test_a_manager_of_the_site_is_used_and_left_to_it(node: GpuNode, on_shards: dict[str, str]) -> None:
    directory = node.directory / "site"
    program = subprocess.Popen([node.environment["EXPLSCHED_KM"], "--dir", directory], env=node.environment)
    try:
        until((directory / "kernel-manager.sock").exists)
        address = str(directory / "kernel-manager.sock")
        running = node.start(*COMMAND, **on_shards, SLURM_JOB_ID="1", EXPLSCHED_KM_SOCKET=address)
        assert str(socket_of(running)) == address
        time.sleep(1.5)  # as long as it takes to notice a manager that is gone
        end(running)
    finally:
        program.terminate()
        program.wait()
    assert starts(node) == 1


@pytest.mark.parametrize("gpu_of_the_second", [None, "3", "4"])
def test_what_another_job_leaves_in_the_environment_is_no_choice(
    node: GpuNode, on_shards: dict[str, str], gpu_of_the_second: str | None
) -> None:
    """A job that is submitted from inside a job inherits its variables, whose daemons end with that job."""
    command = ("--share", "high", "--", "sh", "-c", "env; echo; read -r _")
    first_has = on_shards if gpu_of_the_second else {}
    first = node.start(*command, **first_has, SLURM_JOB_ID="1")
    inherited = environment_of(first)
    own = {"SLURM_JOB_ID": "2"} | ({"SLURM_JOB_GPUS": gpu_of_the_second} if gpu_of_the_second else {})
    second = node.start(*command, **(inherited | first_has | own))
    given = environment_of(second)
    room = Path(inherited["EXPLSCHED_KM_SOCKET"]).parent.parent
    same = gpu_of_the_second == "3"
    names = ("EXPLSCHED_KM_SOCKET", "APPTAINERENV_EXPLSCHED_KM_SOCKET", "APPTAINER_BIND")
    assert {str(room) in given[name] for name in names} == {same}
    end(first)
    assert Path(given["EXPLSCHED_KM_SOCKET"]).exists()
    end(second)


def test_rooms_of_different_gpus_and_nodes_differ(on_shards: dict[str, str]) -> None:
    rooms = {shared_place(on_shards | other) for other in ({}, {"SLURM_JOB_GPUS": "2"}, {"SLURMD_NODENAME": "n9"})}
    assert len(rooms) == 3
    assert shared_place({"SLURM_JOB_GPUS": "0"}) is None


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ({"SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "3"}, "3"),  # srun, or a step in salloc
        ({"SLURM_JOB_GPUS": "3", "SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}, "3"),
        # A step on the second node, where the job has another GPU than on the first one.
        ({"SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "3"}, "3"),
        # A batch script that was submitted in a step.
        ({"SLURM_JOB_GPUS": "3", "SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"SLURM_JOB_GPUS": "3", "SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "3"}, "3"),
        # A step with a part of the job's meets the batch script's commands.
        ({"SLURM_JOB_GPUS": "3,5", "SLURM_STEP_GPUS": "5", "CUDA_VISIBLE_DEVICES": "5"}, "3,5"),
    ],
)
def test_whatever_way_slurm_tells_the_gpus_jobs_on_the_same_meet(
    on_shards: dict[str, str], given: dict[str, str], gpus: str
) -> None:
    job_alone = on_shards | {"SLURM_JOB_GPUS": gpus}
    others = {name: value for name, value in on_shards.items() if name != "SLURM_JOB_GPUS"}
    assert shared_place(others | given) == shared_place(job_alone)
