"""One job of the replay: it counts run time, saves the count when it is asked to, and goes on from there.

Stand-in for a training whose checkpoint is instant. Run time after the last checkpoint is lost at a requeue. When it
begins and ends its work it writes so, for Slurm gives times in whole seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from wrappers.checkpoint import CheckpointSignal, atomic_write

_STEP_S = 0.1


def main() -> None:
    """Run for what is left of `--run-s`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-s", type=float, required=True)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--turns", type=Path, required=True, help="directory of the files that say who worked when")
    options = parser.parse_args()
    turns = options.turns / os.environ["SLURM_JOB_ID"]
    saved = options.checkpoint_dir / os.environ["SLURM_JOB_ID"]
    done_s = float(saved.read_text()) if saved.exists() else 0.0
    with CheckpointSignal() as checkpoint:
        began_s = time.monotonic() - done_s
        _note(turns, "began")
        while (left_s := options.run_s - (time.monotonic() - began_s)) > 0:
            time.sleep(min(_STEP_S, left_s))
            if checkpoint.requested:
                count = repr(time.monotonic() - began_s).encode()
                atomic_write(saved, lambda file, count=count: file.write(count))
                checkpoint.saved(round(float(count)))
    _note(turns, "ended")


def _note(turns: Path, what: str) -> None:
    with turns.open("a", encoding="utf-8") as file:
        file.write(f"{what} {time.time()} {os.environ['SLURM_JOB_NODELIST']}\n")


if __name__ == "__main__":
    main()
