"""Trainings of several processes: all save at the same step, and rank 0 tells."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from explsched import CheckpointSignal
from tests.explsched.progress_file import events, lines

TRAINING = """\
import os, signal, sys, torch, torch.distributed as dist, explsched
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=rank, world_size=2)
with explsched.CheckpointSignal() as checkpoint:
    for step in range(8):
        dist.all_reduce(torch.ones(1))
        if (rank, step) in ((1, 2), (0, 5), (1, 5)):
            os.kill(os.getpid(), signal.SIGUSR1)
        if checkpoint.agreed():
            print("saves", step, flush=True)
            dist.barrier()
            SAVED
os._exit(0)
"""


@pytest.mark.parametrize("saved", ["checkpoint.saved(step)", "rank or checkpoint.saved(step)"])
def test_processes_that_are_asked_at_different_steps_save_at_the_same(job: Path, tmp_path: Path, saved: str) -> None:
    """Whether all say that they have saved, or rank 0 alone."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed (explsched[examples])")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = TRAINING.replace("SAVED", saved)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, rank], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    try:
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert told == ["saves 2\nsaves 5\n"] * 2
    assert [line["step"] for line in lines(job)] == [2, 5]
    assert events(job) == ["checkpoint", "checkpoint"]


def test_a_task_that_trains_by_itself_tells_of_its_own_checkpoint(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of several in a step; RANK may be that of an adapter."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("RANK", "8")
    checkpoint = CheckpointSignal()
    checkpoint.requested = True
    assert checkpoint.agreed()
    assert not checkpoint.agreed()
    checkpoint.saved(3)
    assert [(line["event"], line["step"]) for line in lines(job)] == [("checkpoint", 3)]


def test_a_group_that_torch_does_not_know_agrees_by_its_own_collective() -> None:
    checkpoint = CheckpointSignal()
    asked: list[bool] = []

    def any_process(wanted: bool) -> bool:  # noqa: FBT001  as it is called
        asked.append(wanted)
        return len(asked) == 2

    checkpoint.requested = True
    assert [checkpoint.agreed(any_process), checkpoint.requested] == [False, True]
    assert [checkpoint.agreed(any_process), checkpoint.requested] == [True, False]
    assert asked == [True, True]


def test_a_rank_that_asked_nobody_tells_of_its_checkpoint(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last stage of a pipeline, which has the loss and reports alone."""
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    checkpoint = CheckpointSignal()
    checkpoint.saved(3)
    assert not checkpoint.agreed(bool)
    checkpoint.saved(4)
    assert [(line["event"], line["step"]) for line in lines(job)] == [("checkpoint", 3)]


@pytest.mark.parametrize(
    ("served", "bound", "device"),
    [
        ("cpu:gloo,cuda:gloo", None, "cpu"),
        ("cuda:nccl", None, "cuda"),
        ("cuda:nccl", "cuda:1", "cuda:1"),
        ("cpu:nccl,cuda:nccl", None, "cuda"),  # torch 2.0
        ("cpu:gloo,cuda:nccl", "cuda:1", "cpu"),
    ],
)
def test_processes_agree_on_a_device_that_their_group_serves(
    monkeypatch: pytest.MonkeyPatch, served: str, bound: str | None, device: str
) -> None:
    """NCCL takes no tensors of the CPU, nor of a GPU other than that to which it is bound. Here may be no GPU."""
    asked: list[tuple[int, str]] = []

    def tensor(value: int, device: str) -> SimpleNamespace:
        asked.append((value, device))
        return SimpleNamespace(item=lambda: 1)  # another process was asked

    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_backend_config=lambda: served,
        group=SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=bound)),
        all_reduce=lambda _flag, op: op,
        ReduceOp=SimpleNamespace(MAX="max"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(tensor=tensor))
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert CheckpointSignal().agreed()
    assert asked == [(0, device)]
