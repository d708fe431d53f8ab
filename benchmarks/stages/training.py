"""A training that knows where its iterations spend their time: it times each stage by hand.

usage: training.py STEPS READ_MS WIDTH WORKERS DDP FILE

Batches are read from a data set that takes READ_MS a batch, a network of WIDTH computes on the CPU, gradients are
averaged with Gloo: by DistributedDataParallel (DDP 1), or by collectives after the backward pass (0). Rank 0 writes
what a step took into FILE: iteration, waiting, computing, talking, in ms, in the fastest window of five seconds.
Computing is CPU time of the thread: other work on the machine is not the training's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

BATCH = 64
WINDOW_S = 5.0


class Slow(Dataset[torch.Tensor]):
    """Numbers that come from a slow disk."""

    def __init__(self, batches: int, read_ms: float) -> None:
        self._batches, self._read_s = batches, read_ms / 1000

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._read_s)
        return torch.full((BATCH, 64), float(index % 7))


def fastest(rows: list[tuple[float, ...]]) -> list[float]:
    """Means of the fastest window, in ms; one begins each second, as with sxrun. Of all rows if they are shorter."""
    sums = [(0.0,) * len(rows[0])]
    for row in rows:
        sums.append(tuple(before + more for before, more in zip(sums[-1], row, strict=True)))
    means, end, next_s = [], 0, 0.0
    for begin, before in enumerate(sums):
        if before[0] < next_s:
            continue
        next_s = before[0] + 1.0
        while end < len(rows) and sums[end][0] - before[0] <= WINDOW_S:
            end += 1
        if sums[end][0] - before[0] > WINDOW_S:
            means.append([1000 * (at - from_) / (end - begin) for from_, at in zip(before, sums[end], strict=True)])
    return min(means, default=[1000 * total / len(rows) for total in sums[-1]])


def main() -> None:
    """Train."""
    steps, read_ms, width, workers = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    is_ddp, path = sys.argv[5] == "1", Path(sys.argv[6])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    is_parallel = "RANK" in os.environ
    if is_parallel:
        distributed.init_process_group("gloo")
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Linear(width, 1)
    )
    if is_parallel and is_ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows: list[tuple[float, ...]] = []
    batches = iter(DataLoader(Slow(steps, read_ms), batch_size=None, num_workers=workers))
    ended_s = time.perf_counter()
    for _ in range(steps):
        began_s = time.perf_counter()
        batch = next(batches)
        read_s, read_cpu_s = time.perf_counter(), time.thread_time()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        computed_s = talked_s = time.perf_counter()
        computed_cpu_s = talked_cpu_s = time.thread_time()
        if is_parallel and not is_ddp:
            for parameter in model.parameters():
                assert parameter.grad is not None  # noqa: S101  backward has just been called
                distributed.all_reduce(parameter.grad)
            talked_s, talked_cpu_s = time.perf_counter(), time.thread_time()
        optimizer.step()
        now_s = time.perf_counter()
        computing_s = time.thread_time() - talked_cpu_s + computed_cpu_s - read_cpu_s
        rows.append((now_s - ended_s, read_s - began_s, computing_s, talked_s - computed_s))
        ended_s = now_s
    if os.environ.get("RANK", "0") == "0":
        path.write_text(json.dumps(fastest(rows[len(rows) // 10 :])))
    if is_parallel:
        distributed.destroy_process_group()
        # Gloo's threads outlive their group (PyTorch 2.13): one that still lets go of a gradient while the interpreter
        # is taken down asks for its lock, which ends the thread and with it the process, by SIGABRT.
        os._exit(0)


if __name__ == "__main__":
    main()
