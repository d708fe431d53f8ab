"""One real training of the demo's sweep: an MLP on handwritten digits, validation loss reported after every step.

The stand-in GPUs have no speed of their own, so each step is stretched to the same wall-clock time, whatever this
host's cores do; what is learned in a step is computed for real.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.sweep_demo.asha import OptunaTrial
from explsched import CheckpointSignal, atomic_write, report

BATCH = 32


def main() -> None:
    """Train, resume from the checkpoint if there is one, checkpoint when asked to."""
    options = _options()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data = np.load(options.data)
    train_x, train_y = torch.from_numpy(data["train_x"]), torch.from_numpy(data["train_y"])
    valid_x, valid_y = torch.from_numpy(data["valid_x"]), torch.from_numpy(data["valid_y"])
    model = _mlp(options.width, options.depth)
    loss_of = torch.nn.CrossEntropyLoss()
    step = _resume(options.checkpoint, model)
    trial = OptunaTrial(options.asha, options.steps) if options.asha else None

    def validate() -> float:
        with torch.no_grad():
            loss = float(loss_of(model(valid_x), valid_y))
        report(step=step, loss=loss, total_steps=options.steps)
        return loss

    if step == 0:
        validate()
    with CheckpointSignal() as checkpoint:
        while step < options.steps:
            began_s = time.monotonic()
            order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(1000 * options.seed + step))
            for batch in order.split(BATCH):
                model.zero_grad()
                loss_of(model(train_x[batch]), train_y[batch]).backward()
                _descend(model, options.lr)
            step += 1
            time.sleep(max(0.0, options.step_s - (time.monotonic() - began_s)))
            loss = validate()
            if trial and trial.should_stop(step, loss):
                return
            if checkpoint.requested:
                state = {"step": step, "model": model.state_dict()}
                atomic_write(options.checkpoint, lambda file, state=state: torch.save(state, file))
                checkpoint.saved(step)


def _mlp(width: int, depth: int) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    inputs = 64
    for _ in range(depth):
        layers += [torch.nn.Linear(inputs, width), torch.nn.ReLU()]
        inputs = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, 10))


def _descend(model: torch.nn.Module, lr: float) -> None:
    """One step of plain SGD. `torch.optim` would load a compiler: as long again as torch itself, at every start."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(lr * parameter.grad)


def _resume(path: Path, model: torch.nn.Module) -> int:
    """Load the checkpoint of a requeued job; returns the step to go on from."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    return int(state["step"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument(
        "--data", type=Path, required=True, help="the images, as benchmarks.sweep_demo.sweep saves them"
    )
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--asha", type=Path, help="Optuna's journal: let its ASHA decide whether to stop")
    options = parser.parse_args()
    options.checkpoint = options.checkpoint_dir / f"{os.environ.get('SLURM_JOB_ID', 'local')}.pt"
    return options


if __name__ == "__main__":
    main()
