"""Checkpoint on request, for training loops.

    with CheckpointSignal() as checkpoint:
        for step in range(start, steps):
            train(step)
            if checkpoint.requested:
                atomic_write(path, save_to)
                checkpoint.saved(step)

The scheduler sends the signal when it wants the GPUs for another job, and requeues this one once `saved` has reported
the checkpoint. Until then, and if no scheduler runs, the job simply continues.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from types import FrameType, TracebackType

from explsched.job_options.table import CHECKPOINT
from explsched.progress import event

DEFAULT_SIGNAL = "USR1"


def signal_name(environment: Mapping[str, str]) -> str:
    """The signal that asks this job for a checkpoint, from its environment."""
    return environment.get(CHECKPOINT.variable) or DEFAULT_SIGNAL


def signal_number(name: str) -> signal.Signals:
    """The number of a signal, named with or without SIG. Raises ValueError for one that a job cannot catch."""
    bare = name.upper().removeprefix("SIG")
    number = signal.Signals.__members__.get(f"SIG{bare}")
    if number is None or bare in ("KILL", "STOP"):
        raise ValueError(f"checkpoint signal {name!r}: not a signal that a job can catch, such as USR1")
    return number


class CheckpointSignal:
    """Records requests for a checkpoint. Must be entered in the main thread, as Python requires for signals.

    Args:
        name: signal name with or without SIG; by default the one that the job was submitted with, else USR1.

    Raises ValueError for a signal that a job cannot catch.

    """

    def __init__(self, name: str | None = None) -> None:
        self._number = signal_number(name or signal_name(os.environ))
        self._previous: signal._HANDLER = signal.SIG_DFL
        self.requested = False

    def __enter__(self) -> CheckpointSignal:
        """Start listening."""
        self._previous = signal.signal(self._number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and restore the previous handler."""
        # None: the previous handler was not installed from Python, which cannot restore it.
        signal.signal(self._number, signal.SIG_DFL if self._previous is None else self._previous)

    def saved(self, step: int) -> None:
        """Tell the scheduler that the checkpoint of `step` is on disk."""
        self.requested = False
        event("checkpoint", step)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
