"""Checkpoint on request, for training loops.

    with CheckpointSignal() as checkpoint:
        for step in range(start, steps):
            train(step)
            if checkpoint.requested:
                atomic_write(path, save_to)
                checkpoint.saved(step)

The scheduler sends the signal when it wants the GPUs for something else, and requeues the job once `saved` has told it
that nothing is lost. Until then, and if the scheduler is gone, the job simply goes on.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO

from wrappers.progress import event

SIGNAL_VARIABLE = "EXPLSCHED_CHECKPOINT_SIGNAL"


class CheckpointSignal:
    """Notes that a checkpoint is wanted. Must be entered in the main thread (a rule of Python for signals).

    Args:
        name: signal name with or without SIG; `EXPLSCHED_CHECKPOINT_SIGNAL` by default, else USR1.

    """

    def __init__(self, name: str | None = None) -> None:
        text = name or os.environ.get(SIGNAL_VARIABLE) or "USR1"
        self._number = signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
        self._previous: signal._HANDLER = signal.SIG_DFL
        self.requested = False

    def __enter__(self) -> CheckpointSignal:
        """Start listening."""
        self._previous = signal.signal(self._number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening; the previous handler is back."""
        signal.signal(self._number, self._previous)

    def saved(self, step: int) -> None:
        """Tell the scheduler that the checkpoint of `step` is on disk."""
        self.requested = False
        event("checkpoint", step)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


def atomic_write(path: Path | str, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file that replaces `path` in one step: a job killed meanwhile keeps its old checkpoint."""
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
