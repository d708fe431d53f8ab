"""Checkpoint on request, for training loops.

    with CheckpointSignal() as checkpoint:
        for step in range(start, steps):
            train(step)
            if checkpoint.requested:
                atomic_write(path, save_to)
                checkpoint.saved(step)

The scheduler sends the signal when it wants the GPUs for another job, and requeues this one once `saved` has reported
the checkpoint. Until then, and if no scheduler runs, the job simply continues.

Processes that train together see the signal at different steps, and must save at the same one. Each of them runs this:

    if checkpoint.agreed():
        save(step)
        torch.distributed.barrier()
        checkpoint.saved(step)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType

from explsched.job_options.table import CHECKPOINT
from explsched.process_signals import signal_number
from explsched.progress import event, tell_script
from explsched.ranks import any_rank, is_first_rank

DEFAULT_SIGNAL = "USR1"


def signal_name(environment: Mapping[str, str]) -> str:
    """The signal that asks this job for a checkpoint, from its environment."""
    return environment.get(CHECKPOINT.variable) or DEFAULT_SIGNAL


class CheckpointSignal:
    """Records requests for a checkpoint. Must be entered in the main thread, as Python requires for signals.

    Args:
        name: signal name with or without SIG; by default the one that the job was submitted with, else USR1.

    `requested` is whether this process has been asked, and neither `agreed` nor `saved` has answered since. Raises
    ValueError for a signal that a job cannot catch.

    """

    def __init__(self, name: str | None = None) -> None:
        self._number = signal_number(name or signal_name(os.environ))
        self._previous: signal._HANDLER = signal.SIG_DFL
        self._has_asked_others = False
        self.requested = False

    def __enter__(self) -> CheckpointSignal:
        """Start listening."""
        self._previous = signal.signal(self._number, self._note)
        if is_first_rank():
            tell_script(self._number.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and restore the previous handler."""
        # None: the previous handler was not installed from Python, which cannot restore it.
        signal.signal(self._number, signal.SIG_DFL if self._previous is None else self._previous)

    def agreed(self, any_process: Callable[[bool], bool] = any_rank) -> bool:
        """Whether any of the processes that train together has been asked: all have the same answer at the same step.

        All of them must call it, at the same place of the loop: it is a collective of `torch.distributed`, or, where
        that has no process group, the answer of this process alone. With the backend NCCL it runs on the current device
        and waits for it. The request is answered by that: who gets True saves now, and is not asked again.

        Args:
            any_process: for processes that have no group of `torch.distributed`, such as Horovod's: a collective that
                is given whether this process has been asked, and returns whether any has.

        """
        self._has_asked_others = True
        wanted = any_process(self.requested)
        if wanted:  # what comes after a no is asked at the next step
            self.requested = False
        return wanted

    def saved(self, step: int) -> None:
        """Tell the scheduler that the checkpoint of `step` is on disk, after which it may requeue the job at once.

        Where several processes save, call it when all of them have. Each process that calls it tells the scheduler, but
        for those that have called `agreed` in a process group of `torch.distributed`: of these rank 0 does.
        """
        self.requested = False
        if is_first_rank() or not self._has_asked_others:
            event("checkpoint", step)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
