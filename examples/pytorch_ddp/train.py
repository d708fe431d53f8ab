"""DistributedDataParallel: all processes agree on the step at which they save, and go on from what rank 0 has saved.

torchrun --nproc-per-node=2 examples/pytorch_ddp/train.py --lr 0.1
sxbatch --checkpoint USR1 --template torchrun --param nodes=2 -- examples/pytorch_ddp/train.py --lr 0.1
"""

import argparse
import os
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import explsched

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=600)
options = parser.parse_args()
saved = Path(f"ddp-{os.environ.get('SLURM_JOB_ID', 'local')}.pt")

has_gpus = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else torch.device("cpu")
if has_gpus:
    torch.cuda.set_device(device)
distributed.init_process_group("nccl" if has_gpus else "gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()

torch.manual_seed(1)
inputs = torch.randn(4096, 16)
targets = torch.sin(inputs).prod(dim=1, keepdim=True) + inputs.sum(dim=1, keepdim=True) / 4
x, y = inputs[rank::size].to(device), targets[rank::size].to(device)
layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
start = 0
if saved.exists():  # the job was requeued
    state = torch.load(saved, map_location=device, weights_only=True)
    layers.load_state_dict(state["model"])
    start = state["step"]
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

with explsched.CheckpointSignal() as checkpoint:  # in every process
    for step in range(start, options.steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if rank == 0:
            explsched.report(step=step, loss=loss.item(), total_steps=options.steps)
        if checkpoint.agreed():  # every process calls it at each step, and all get the same answer
            if rank == 0:  # where each has a part of the state, as with FSDP, each saves its own
                state = {"model": layers.state_dict(), "step": step + 1}
                explsched.atomic_write(saved, lambda file, state=state: torch.save(state, file))
            distributed.barrier()  # all have saved
            checkpoint.saved(step)  # rank 0 tells the scheduler, which may requeue the job from here on
distributed.destroy_process_group()
