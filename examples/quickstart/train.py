"""Fit a line by gradient descent, with the standard library alone: what a training tells explsched, and when it saves.

python3 examples/quickstart/train.py --lr 0.1
"""

import argparse
import json
import os
import random
import time
from pathlib import Path

import explsched

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1, help="learning rate; 0.01 is slow, 0.3 is good, 2 diverges")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--step-s", type=float, default=0.2, help="seconds that a step takes at least")
options = parser.parse_args()
saved = Path(f"line-{os.environ.get('SLURM_JOB_ID', 'local')}.json")

random.seed(1)
points = [(x / 100, 3 * x / 100 - 1 + random.gauss(0, 0.1)) for x in range(100)]
slope, offset, start = 0.0, 0.0, 0
is_new_job = "SLURM_JOB_ID" in os.environ and "SLURM_RESTART_COUNT" not in os.environ
if saved.exists() and not is_new_job:  # it was requeued; a new job's number may have been another cluster's before
    slope, offset, start = json.loads(saved.read_text())

with explsched.CheckpointSignal() as checkpoint:
    for step in range(start, options.steps):
        errors = [slope * x + offset - y for x, y in points]
        loss = sum(error * error for error in errors) / len(points)
        slope -= options.lr * 2 * sum(error * x for error, (x, _) in zip(errors, points, strict=True)) / len(points)
        offset -= options.lr * 2 * sum(errors) / len(points)
        explsched.report(step=step, loss=loss, total_steps=options.steps)
        if checkpoint.requested:
            state = json.dumps([slope, offset, step + 1]).encode()
            explsched.atomic_write(saved, lambda file, state=state: file.write(state))
            checkpoint.saved(step)
        time.sleep(options.step_s)
saved.unlink(missing_ok=True)
