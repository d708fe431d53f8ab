"""Elastic jobs: the sizes a job offers, and what it is told of the size it got.

When Slurm starts a job whose size was changed while it waited, SLURM_JOB_NUM_NODES, SLURM_GPUS_ON_NODE and
CUDA_VISIBLE_DEVICES tell the truth, but what sbatch had put into the environment at submission is as old as that: srun
would start steps of the old size.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

ELASTIC_VARIABLE = "EXPLSCHED_ELASTIC"
_SIZES = re.compile(r"([0-9]{1,6})-([0-9]{1,6})(?:/([0-9]{1,6}))?")
_TASK_COUNTS = ("SLURM_NTASKS", "SLURM_NPROCS")


def sizes(text: str) -> str:
    """A type of argparse: `MIN-MAX` GPUs on one node, or `MIN-MAX/N` with N on each of several; empty for none."""
    match = _SIZES.fullmatch(text)
    least, most, unit = (int(match[1]), int(match[2]), int(match[3] or 1)) if match else (0, 0, 1)
    if text and (not unit or not 1 <= least < most or least % unit or most % unit):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not MIN-MAX or MIN-MAX/N, such as 1-8 or 8-32/8 (1 <= MIN < MAX, both multiples of N)"
        )
    return text


def present_size(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an elastic job's batch script that must be set anew, so that its steps have its present size.

    Nothing for other jobs, and inside of a step, which Slurm has told its own size. --ntasks-per-node says how many
    tasks the job has with its present nodes; without it the number of tasks stays.
    """
    if not environment.get(ELASTIC_VARIABLE) or "SLURM_STEP_ID" in environment:
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
