"""Templates on a real cluster: a job that is preempted in the middle ends with the loss of one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from tests.slurm.jobs import empty, final_state, run, sxbatch, until
from tests.slurm.trainings import ended, interrupt, loses_nothing_when_preempted, submit

pytestmark = pytest.mark.slurm
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STEPS = 200
TRAINING = str(HERE / "distributed_training.py")


@pytest.fixture(scope="module")
def cluster(needs_slurm: None, open_tmp: Path) -> Iterator[Cluster]:
    """4 nodes whose Slurm signals the tasks of a step alone, not what they have started: as with proctrack/cgroup."""
    directory = open_tmp / "tasks_alone"
    extra = (("ProctrackType", "proctrack/pgid"),)
    yield up(ClusterSpec(nodes=4, gpus_per_node=8, shards_per_node=32, extra=extra), directory)
    down(directory)


@pytest.mark.parametrize(("template", "needed"), [("torchrun", "torch"), ("deepspeed", "deepspeed")])
def test_a_preempted_job_loses_nothing_since_its_checkpoint(
    cluster: Cluster, open_tmp: Path, template: str, needed: str
) -> None:
    if find_spec("torch") is None or find_spec(needed) is None:
        pytest.skip(f"this training needs PyTorch (extra `demo`) and {needed}")
    loses_nothing_when_preempted(cluster, open_tmp, template, [TRAINING])


def test_a_preempted_task_of_a_sweep_gets_its_combination_again(cluster: Cluster, open_tmp: Path) -> None:
    """Two tasks, each on a node of its own; one is preempted, the other goes on undisturbed."""
    if find_spec("torch") is None:
        pytest.skip("the training needs PyTorch (extra `demo`)")
    client = CliClient(environment=cluster.env())
    found: list[list[tuple[float, int]]] = []
    saved = 0
    for name in ("undisturbed", "preempted"):
        directory = open_tmp / f"sweep_{name}"
        options = ["--param-grid=lr=0.05,0.2", "--exclusive"]
        array = submit(cluster, directory, "sweep", options, ["python", TRAINING])
        until(lambda array=array: len(tasks(client, array)) == 2, "both tasks run")  # type: ignore[misc]
        of_task = tasks(client, array)
        if name == "preempted":
            saved = interrupt(client, directory, of_task[0])
        found.append([ended(cluster, directory, of_task[i], directory / str(i) / "result") for i in range(2)])
    (first, second), (first_again, second_again) = found
    assert first[0] != second[0]
    assert first_again == (first[0], saved)
    assert second_again == second
    empty(cluster)


def test_a_signal_that_srun_does_not_pass_on_ends_no_step(cluster: Cluster, open_tmp: Path) -> None:
    """srun would kill its tasks for a SIGTERM; and they are told nothing of the others."""
    place = open_tmp / "not_passed_on"
    place.mkdir()
    output, script = place / "out", place / "train.sh"
    script.write_text(f"#!/bin/bash\nexec sxrun -- srun bash -c 'until [ -e {place}/go ]; do sleep 0.1; done'\n")
    job_id = sxbatch(cluster, "--checkpoint=TERM", f"--output={output}", str(script))
    until(lambda: told(output, "srun does not pass SIGTERM on"), "the user is told")
    until(lambda: has_step(cluster, job_id), "the step runs")
    run(cluster, "scancel", "--batch", "--signal=TERM", str(job_id))
    until(lambda: told(output, "SIGTERM is kept"), "the signal has come")
    (place / "go").touch()
    until(lambda: final_state(cluster, job_id) not in ("RUNNING", "COMPLETING"), "the job ends")
    assert final_state(cluster, job_id) == "COMPLETED", output.read_text()


def test_steps_of_a_script_that_do_not_handle_the_signal_go_on(cluster: Cluster, open_tmp: Path) -> None:
    """srun below the script would pass it on to a task that it ends."""
    place = open_tmp / "steps"
    place.mkdir()
    output, script = place / "out", place / "train.sh"
    steps = (
        f'#!/bin/bash\nset -e\nsrun bash -c "until [ -e {place}/go ]; do sleep 0.1; done"\nsrun touch {place}/second\n'
    )
    (place / "steps.sh").write_text(steps)
    script.write_text(f"#!/bin/bash\nexec sxrun -- bash {place}/steps.sh\n")
    job_id = sxbatch(cluster, "--checkpoint=USR1", f"--output={output}", str(script))
    until(lambda: has_step(cluster, job_id), "the first step runs")
    run(cluster, "scancel", "--batch", "--signal=USR1", str(job_id))
    until(lambda: told(output, "SIGUSR1 is kept"), "the signal has come")
    (place / "go").touch()
    until(lambda: final_state(cluster, job_id) not in ("RUNNING", "COMPLETING"), "the job ends")
    assert final_state(cluster, job_id) == "COMPLETED", output.read_text()
    assert (place / "second").exists()


def told(output: Path, words: str) -> bool:
    return output.exists() and words in output.read_text()


def has_step(cluster: Cluster, job_id: int) -> bool:
    return f"{job_id}.0 " in run(cluster, "squeue", "--steps", "--noheader", "--format=%i ")


def tasks(client: CliClient, array: int) -> dict[int, int]:
    """Job ids of an array's running tasks, by their number."""
    running = [job for job in client.jobs() if job.array_job_id == array and job.state == "RUNNING"]
    return {job.array_task_id: job.job_id for job in running if job.array_task_id is not None}
