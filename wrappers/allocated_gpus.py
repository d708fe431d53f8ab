"""The GPUs that Slurm gives a command, as the node numbers them.

Slurm tells a batch script in SLURM_JOB_GPUS, a step in SLURM_STEP_GPUS. Both are passed on to what is started there: a
step on another node has the batch script's, a batch script that is submitted in a step that step's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_CGROUPS = Path("/proc/self/cgroup")


def of_command(environment: Mapping[str, str]) -> str:
    """Those of the batch script or step that the command runs in, comma-separated; empty if it has none."""
    job, step = environment.get("SLURM_JOB_GPUS", ""), environment.get("SLURM_STEP_GPUS", "")
    if not job or not step or job == step:
        return job or step
    return step if in_step(environment, _CGROUPS.read_text() if _CGROUPS.exists() else "") else job


def in_step(environment: Mapping[str, str], cgroups: str) -> bool:
    """Whether SLURM_STEP_GPUS is of this command. `cgroups` is its /proc/PID/cgroup.

    Without Slurm's cgroups, devices are not constrained, and CUDA_VISIBLE_DEVICES has the node's numbers.
    """
    if "/step_" in cgroups:
        return "/step_batch" not in cgroups
    return environment.get("CUDA_VISIBLE_DEVICES") != environment["SLURM_JOB_GPUS"]


def of_job(environment: Mapping[str, str]) -> str:
    """All that the job has on this node, if a step with a part of them can tell."""
    own, job = of_command(environment), environment.get("SLURM_JOB_GPUS", "")
    return job if set(own.split(",")) <= set(job.split(",")) else own


def visible(environment: Mapping[str, str]) -> str:
    """Tells sets of visible GPUs of a job on this node apart.

    Where a cgroup constrains devices, CUDA_VISIBLE_DEVICES counts those of each step from 0 on, so that it can be the
    same for steps on different GPUs.
    """
    seen, own = environment.get("CUDA_VISIBLE_DEVICES", "all"), of_command(environment)
    words = seen.split(",")
    is_count = own and all(word.isdecimal() for word in words) and not set(words) <= set(own.split(","))
    return f"{seen} of {own}" if is_count else seen
