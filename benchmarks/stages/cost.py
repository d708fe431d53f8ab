"""What measuring costs the example training: its loop, with the hooks counting in every second epoch.

usage: cost.py EPOCHS    (with EXPLSCHED_STAGES_DIRECTORY and PYTHONPATH as sxrun sets them; prints the fraction)

In one process, since the start of PyTorch takes longer than its training, and never twice as long. CPU time, so that
other work on the machine counts little; the lower quartiles of all epochs are compared.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import _explsched_stages as hooks  # isort: skip  (on PYTHONPATH, with the sitecustomize that gives PyTorch its hooks)


def main() -> None:
    """Train as examples/pytorch_sweep/train.py does."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    inputs = torch.randn(3072, 16)
    targets = torch.sin(inputs).prod(dim=1, keepdim=True) + inputs.sum(dim=1, keepdim=True) / 4
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)

    def epoch_s() -> float:
        began_s = time.process_time()
        for batch_x, batch_y in batches:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch_x), batch_y).backward()
            optimizer.step()
        return time.process_time() - began_s

    counting = hooks._counters
    taken_s: dict[bool, list[float]] = {True: [], False: []}
    for epoch in range(int(sys.argv[1])):
        for is_counting in (epoch % 2 == 0, epoch % 2 != 0):  # who comes second gains by it
            hooks._counters = counting if is_counting else None
            taken_s[is_counting].append(epoch_s())
    quartile = {is_counting: statistics.quantiles(taken)[0] for is_counting, taken in taken_s.items()}
    print(quartile[True] / quartile[False] - 1)


if __name__ == "__main__":
    main()
