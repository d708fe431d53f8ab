"""What a job is told of its size: an elastic one, and one that has a part of a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wrappers.elastic_size import present_size
from wrappers.sub_batches import sub_batches

RESIZED = {
    "EXPLSCHED_ELASTIC": "2-8/2",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_GPUS_PER_NODE": "a100:2",
    "SLURM_NTASKS": "2",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
}


def test_what_sbatch_had_set_is_put_right() -> None:
    assert present_size(RESIZED) == {"SLURM_GPUS_PER_NODE": "a100:4", "SLURM_NTASKS": "3", "SLURM_NPROCS": "3"}


def test_a_job_of_its_submitted_size_keeps_its_environment() -> None:
    as_submitted = {**RESIZED, "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "2"}
    assert present_size(as_submitted) == {}


@pytest.mark.parametrize("change", [{"SLURM_STEP_ID": "0"}, {"EXPLSCHED_ELASTIC": ""}])
def test_steps_and_other_jobs_are_left_alone(change: dict[str, str]) -> None:
    assert present_size({**RESIZED, **change}) == {}


def test_what_was_not_set_stays_so() -> None:
    assert present_size({"EXPLSCHED_ELASTIC": "1-4", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "4"}) == {}
    without = {name: value for name, value in RESIZED.items() if name != "SLURM_NPROCS"}
    assert "SLURM_NPROCS" not in present_size(without)


@pytest.mark.parametrize(
    ("held", "whole", "parts"), [(8, 8, 1), (4, 8, 2), (3, 8, 4), (1, 8, 8), (16, 8, 1), (2, 3, 2)]
)
def test_a_batch_is_halved_until_it_fits(held: int, whole: int, parts: int) -> None:
    assert sub_batches(held, whole) == parts


@pytest.mark.parametrize(
    ("gres", "parts"),
    [("gpu:1(S:0),shard:8(S:0)", "4"), ("gpu:a100:1(S:0),gpu:h100:1(S:1),shard:8(S:0-1)", "2"), ("gpu:2", "-")],
)
def test_the_command_is_told_in_how_many_parts_of_its_gpu_a_batch_fits(tmp_path: Path, gres: str, parts: str) -> None:
    """A node may have GPUs of several types, which have as many shards each."""
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho 'NodeName=n1'\necho '   Gres={gres}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    told = {"SLURM_SHARDS_ON_NODE": "2", "SLURMD_NODENAME": "n1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [sys.executable, "-m", "wrappers.sxrun", "--", "sh", "-c", "echo ${EXPLSCHED_SUB_BATCHES--}"]
    assert subprocess.check_output(words, env={**os.environ, **told}, text=True) == f"{parts}\n"
