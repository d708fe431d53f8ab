"""Stages that `sxrun --measure-stages` measures, against those that a training times by hand; and what measuring costs.

    python -m benchmarks.stages --python PYTHON_WITH_TORCH [--json FILE]

By hand and measured, what counts is the fastest window of five seconds. The overhead is that of the example training
(examples/pytorch_sweep) in CPU time: `benchmarks.stages.cost`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TRAINING = str(ROOT / "benchmarks/stages/training.py")
_EXAMPLE = str(ROOT / "examples/pytorch_sweep/train.py")
_NAMES = ("iteration", "reading", "computing", "talking")


@dataclass(frozen=True)
class Case:
    """A training: what a batch takes to be read, how wide its network is, who reads and who talks."""

    name: str
    steps: int
    read_ms: float
    width: int
    workers: int = 0
    processes: int = 1
    is_ddp: bool = False

    def command(self, python: str, truth: Path) -> list[str]:
        """Runs it."""
        words = (self.steps, self.read_ms, self.width, self.workers, int(self.is_ddp), truth)
        run = [python, "-m", "torch.distributed.run", f"--nproc-per-node={self.processes}", "--master-port=29741"]
        run += [f"--log-dir={truth.parent}"]  # it would make one in /tmp, and leave it there
        return [*(run if self.processes > 1 else [python]), _TRAINING, *map(str, words)]


CASES = (
    Case("reads in the same process", 1800, 4.0, 512),
    Case("reads in two workers", 1500, 16.0, 512, workers=2),
    Case("two processes, one collective", 700, 4.0, 512, processes=2),
    Case("two processes, DistributedDataParallel", 1000, 4.0, 512, processes=2, is_ddp=True),
)


@dataclass(frozen=True)
class Outcome:
    """Milliseconds as timed by hand and as measured. `worst` is the largest error, of the iteration's length."""

    name: str
    by_hand_ms: tuple[float, ...]
    measured_ms: tuple[float, ...]
    worst: float


def measured(command: Sequence[str], directory: Path) -> tuple[float, ...]:
    """The stages that sxrun reports for a command, in milliseconds."""
    told = directory / "progress"
    told.unlink(missing_ok=True)
    subprocess.run(
        [sys.executable, "-m", "wrappers.sxrun", "--measure-stages", "--", *command],
        check=True,
        cwd=ROOT,
        env=os.environ | {"EXPLSCHED_PROGRESS_FILE": str(told)},
    )
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    return tuple(map(float, [line["stages"] for line in lines if "stages" in line][-1].split("/")))


def compared(case: Case, python: str, directory: Path) -> Outcome:
    """One training, measured while it times itself."""
    truth = directory / "truth.json"
    found = measured(case.command(python, truth), directory)
    by_hand = list(json.loads(truth.read_text()))
    if case.workers:  # they read while the training computes
        by_hand[1] = max(by_hand[1], case.read_ms / case.workers)
    shown = range(4)
    if case.is_ddp:  # talks inside of the backward pass: no hand comes between
        shown = range(2)
    worst = max(abs(found[part] - by_hand[part]) for part in shown) / by_hand[0]
    return Outcome(case.name, tuple(by_hand), found, worst)


def overhead(python: str, directory: Path, epochs: int) -> float:
    """The part by which measuring lengthens the example training's loop, in CPU time."""
    path = ":".join(filter(None, (str(ROOT / "wrappers/in_training"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [python, "-m", "benchmarks.stages.cost", str(epochs)],
        check=True,
        cwd=ROOT,
        env=os.environ | {"EXPLSCHED_STAGES_DIRECTORY": str(directory), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def main() -> None:
    """Print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--epochs", type=int, default=300, help="of the example training, for the overhead; 0: none")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        outcomes = [compared(case, options.python, Path(name)) for case in CASES]
        cost = overhead(options.python, Path(name), options.epochs) if options.epochs else None
    for outcome in outcomes:
        print(outcome.name)
        for part, true, found in zip(_NAMES, outcome.by_hand_ms, outcome.measured_ms, strict=True):
            print(f"  {part:<10} by hand {true:8.3f} ms   measured {found:8.3f} ms")
        print(f"  worst error {100 * outcome.worst:.1f} % of the iteration")
    if cost is not None:
        print(f"overhead on the example training: {100 * cost:.2f} %")
    if options.json:
        stored = {"cases": [asdict(outcome) for outcome in outcomes], "overhead": cost}
        options.json.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
