"""Which GPUs a command has, where Slurm's variables are of a batch script, a step, or what these were started from."""

import pytest

from tests.wrappers.gpu_node import gpu_node
from wrappers.allocated_gpus import in_step
from wrappers.runtime_directory import place


def test_slurms_cgroups_tell_steps_from_batch_scripts() -> None:
    """With constrained devices CUDA_VISIBLE_DEVICES tells nothing."""
    given = {"SLURM_JOB_GPUS": "3", "SLURM_STEP_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}
    second = "0::/system.slice/slurmstepd.scope/job_7/step_{}/user/task_0\n"
    first = "5:memory:/slurm/uid_1000/job_7/step_{}/task_0\n4:devices:/slurm/uid_1000/job_7/step_{}\n"
    for form in (first, second):
        assert not in_step(given, form.replace("{}", "batch"))
        assert in_step(given | {"CUDA_VISIBLE_DEVICES": "1"}, form.replace("{}", "0"))
        assert in_step(given | {"CUDA_VISIBLE_DEVICES": "1"}, form.replace("{}", "interactive"))


def test_steps_on_different_gpus_have_mps_of_their_own_where_cgroups_number_both_from_0() -> None:
    """A client of the other's daemon would use the other's GPU."""
    step = ("--mps", "--", "sh", "-c", 'echo "$CUDA_MPS_PIPE_DIRECTORY"; read -r _')
    constrained = {"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0"}
    with gpu_node() as node:
        pipes = []
        for gpu in ("2", "3", "3"):
            running = node.start(*step, **constrained, SLURM_STEP_GPUS=gpu)
            assert running.stdout is not None
            pipes.append(running.stdout.readline())
        for running in node.started:
            running.communicate("\n")
        assert len(set(pipes)) == 2
        assert pipes[1] == pipes[2]


@pytest.mark.parametrize(
    ("script", "step"),
    [
        (("2,3", "2"), ("2", "2")),  # all devices are open to all: numbers of the node
        (("2,3", "0,1"), ("2,3", "0,1")),
        (("2,3", "GPU-5f1"), ("2", "GPU-5f1")),
    ],
)
def test_a_batch_script_and_a_step_that_see_the_same_gpus_share_a_room(
    script: tuple[str, str], step: tuple[str, str]
) -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": script[0]}
    first = place(batch | {"CUDA_VISIBLE_DEVICES": script[1]})
    assert place(batch | {"SLURM_STEP_GPUS": step[0], "CUDA_VISIBLE_DEVICES": step[1]}) == first
