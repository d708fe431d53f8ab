"""A small network learns a function of 16 numbers. It reports its validation loss and resumes from its checkpoint."""

import argparse
import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import explsched

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--epochs", type=int, default=60)
options = parser.parse_args()

job = os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID", "local"))
saved = Path(f"mlp-{job}-{os.environ.get('SLURM_ARRAY_TASK_ID', 0)}.pt")
device = "cuda" if torch.cuda.is_available() else "cpu"

torch.manual_seed(1)
inputs = torch.randn(4096, 16)
targets = torch.sin(inputs).prod(dim=1, keepdim=True) + inputs.sum(dim=1, keepdim=True) / 4
train_x, valid_x = inputs.to(device).split([3072, 1024])
train_y, valid_y = targets.to(device).split([3072, 1024])

model = torch.nn.Sequential(torch.nn.Linear(16, options.width), torch.nn.Tanh(), torch.nn.Linear(options.width, 1)).to(
    device
)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
batches = DataLoader(TensorDataset(train_x, train_y), batch_size=64, shuffle=True)
parts = int(os.environ.get("EXPLSCHED_SUB_BATCHES", 1))  # more than 1 where others have a part of the GPU's memory
start = 0
if saved.exists():  # the task was requeued
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    start = state["epoch"]

with explsched.CheckpointSignal() as checkpoint:
    for epoch in range(start, options.epochs):
        for batch_x, batch_y in batches:
            optimizer.zero_grad()
            for x, y in zip(batch_x.chunk(parts), batch_y.chunk(parts), strict=True):
                (torch.nn.functional.mse_loss(model(x), y) * len(x) / len(batch_x)).backward()
            optimizer.step()
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(model(valid_x), valid_y)
        explsched.report(step=epoch, loss=loss, total_steps=options.epochs)
        if checkpoint.requested:
            state = {"model": model.state_dict(), "epoch": epoch + 1}
            explsched.atomic_write(saved, lambda file, state=state: torch.save(state, file))
            checkpoint.saved(epoch)
