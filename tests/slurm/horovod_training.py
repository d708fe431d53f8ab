"""A small Horovod training, as a user would write it: checkpoint on request, progress reported.

usage: horovod_training.py DIRECTORY STEPS
The final loss and the step it began at are appended to DIRECTORY/result.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

from explsched import CheckpointSignal, atomic_write, report

PACE_S = 0.05


def main() -> None:
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    saved = directory / "checkpoint.pt"
    start = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    loss = torch.tensor(0.0)
    with CheckpointSignal() as checkpoint:
        for step in range(start, steps):
            shard = torch.Generator().manual_seed(step * hvd.size() + hvd.rank())
            inputs = torch.randn(32, 8, generator=shard)
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True).sin()).square().mean()
            loss.backward()
            optimizer.step()
            loss = hvd.allreduce(loss.detach(), name="loss")
            if hvd.rank() == 0:
                report(step=step + 1, loss=loss.item(), total_steps=steps)
            if checkpoint.requested and hvd.rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                atomic_write(saved, lambda file, state=state: torch.save(state, file))
                checkpoint.saved(step + 1)
            time.sleep(PACE_S)
    if hvd.rank() == 0:
        with (directory / "result").open("a") as file:
            file.write(f"{loss.item():.9f} {start}\n")
    hvd.shutdown()


if __name__ == "__main__":
    main()
