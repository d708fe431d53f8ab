"""The size that an elastic job's batch script has, where sbatch had told it another one."""

from __future__ import annotations

from collections.abc import Mapping

from explsched.job_options.table import ELASTIC

_TASK_COUNTS = ("SLURM_NTASKS", "SLURM_NPROCS")


def present_size(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an elastic job's batch script that must be set anew, so that its steps have its present size.

    Nothing for other jobs, and inside of a step, which Slurm has told its own size. --ntasks-per-node says how many
    tasks the job has with its present nodes; without it the number of tasks stays. Slurm itself starts a job whose size
    was changed while it waited with SLURM_JOB_NUM_NODES, SLURM_GPUS_ON_NODE and CUDA_VISIBLE_DEVICES as they are now,
    but with what sbatch had put into the environment at submission: srun would start steps of the old size.
    """
    if not environment.get(ELASTIC.variable) or "SLURM_STEP_ID" in environment:
        return {}
    fresh: dict[str, str] = {}
    asked, held = environment.get("SLURM_GPUS_PER_NODE", ""), environment.get("SLURM_GPUS_ON_NODE", "")
    if asked and held.isdecimal():
        kind, colon, _ = asked.rpartition(":")
        fresh["SLURM_GPUS_PER_NODE"] = f"{kind}{colon}{held}"
    per_node, nodes = environment.get("SLURM_NTASKS_PER_NODE", ""), environment.get("SLURM_JOB_NUM_NODES", "")
    if per_node.isdecimal() and nodes.isdecimal():
        tasks = str(int(per_node) * int(nodes))
        fresh |= {name: tasks for name in _TASK_COUNTS if name in environment}
    return {name: value for name, value in fresh.items() if environment[name] != value}
