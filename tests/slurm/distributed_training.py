"""A small distributed training, as a user would write it: data-parallel, checkpoint on request, progress reported.

usage: distributed_training.py DIRECTORY STEPS [--lr=RATE]
The final loss and the step it began at are appended to DIRECTORY/result; a task of a job array uses a directory of its
own in DIRECTORY. Other options, such as the --local_rank of launchers, are ignored. Without a launcher it is alone.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed

from explsched import CheckpointSignal, atomic_write, report

PACE_S = 0.05


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    directory, steps = Path(words[0]) / os.environ.get("SLURM_ARRAY_TASK_ID", ""), int(words[1])
    rate = next((float(word.partition("=")[2]) for word in sys.argv if word.startswith("--lr=")), 0.05)
    directory.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    else:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    saved = directory / "checkpoint.pt"
    start = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    loss = torch.tensor(0.0)
    with CheckpointSignal() as checkpoint:
        for step in range(start, steps):
            shard = torch.Generator().manual_seed(step * size + rank)  # what a step sees depends on nothing else
            inputs = torch.randn(32, 8, generator=shard)
            loss = (parallel(inputs) - inputs.sum(dim=1, keepdim=True).sin()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            distributed.all_reduce(loss)
            if rank == 0:
                report(step=step + 1, loss=loss.item() / size, total_steps=steps)
            if checkpoint.agreed():
                if rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                    atomic_write(saved, lambda file, state=state: torch.save(state, file))
                distributed.barrier()
                checkpoint.saved(step + 1)
            time.sleep(PACE_S)
    if rank == 0:
        with (directory / "result").open("a") as file:
            file.write(f"{loss.item() / size:.9f} {start}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
