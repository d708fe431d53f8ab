"""Work spread over processes, with progress bars on stderr; no process outlives the one that started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing.queues import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from explsched.errors import ExplschedError
from explsched.tables import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Called with (units done, units in all)."""

_POLL_S = 0.2


class WorkerError(ExplschedError):
    """A worker process ended on its own."""


def run_all(
    work: Callable[[Task, Progress], Result],
    tasks: Sequence[Task],
    workers: int,
    progress: Callable[[int, int, int], None],
) -> list[Result]:
    """Do `work` on every task, in at most `workers` processes; the results in the order of the tasks.

    `work` must be importable; tasks and results are pickled. `progress` is called with (position of the task, units
    done, units in all). The first exception of a task, Ctrl-C and SIGTERM end all processes and are raised here. Raises
    `WorkerError` if a process dies. Only for the main thread, to which signals are delivered.
    """
    # Spawned processes share no locks with the threads of this one, such as those that draw progress bars.
    context = multiprocessing.get_context("spawn")
    reports: SimpleQueue[tuple[int, int, int]] = context.SimpleQueue()
    others = multiprocessing.active_children()
    executor = ProcessPoolExecutor(min(workers, len(tasks)), context, _begin, (reports,))
    usual = signal.signal(signal.SIGTERM, _exit)
    try:
        futures = [executor.submit(_do, work, position, task) for position, task in enumerate(tasks)]
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
            while not reports.empty():
                progress(*reports.get())
            for future in done:
                future.result()
                progress(futures.index(future), 1, 1)
        return [future.result() for future in futures]
    except BaseException as error:
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()  # the executor's own thread waits for them; two waiters would lose one
        if isinstance(error, BrokenProcessPool):
            raise WorkerError("a worker process was killed; if memory ran out, use fewer (-j)") from error
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, usual)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _drop(_report: tuple[int, int, int]) -> None:
    """Discard a report outside worker processes."""


_send: Callable[[tuple[int, int, int]], None] = _drop  # replaced in each worker process


def _begin(reports: SimpleQueue[tuple[int, int, int]]) -> None:
    """Set up a worker: Ctrl-C is for the process that started it, and it does not outlive that one."""
    global _send
    _send = reports.put
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(work: Callable[[Task, Progress], Result], position: int, task: Task) -> Result:
    next_s = 0.0

    def report(done: int, total: int) -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s >= next_s:
            next_s = now_s + _POLL_S
            _send((position, done, total))

    return work(task, report)


PATIENCE_S = 1.0
Report = Callable[[int, int, int], None]
"""Takes (which bar, units done, units in all)."""


@contextmanager
def bars(labels: Sequence[str]) -> Iterator[Report]:
    """One bar for each label. They appear after a second, on a terminal only, and vanish at the end."""
    appear_s = time.monotonic() + PATIENCE_S if is_terminal(sys.stderr) else float("inf")
    shown: Bars | None = None
    with ExitStack() as stack:

        def report(bar: int, done: int, total: int) -> None:
            nonlocal shown
            if shown is None:
                if time.monotonic() < appear_s:
                    return
                shown = stack.enter_context(_progress(labels))
            shown.update(shown.task_ids[bar], completed=done, total=total)

        yield report


def _progress(labels: Sequence[str]) -> Bars:
    # Imported late: short commands must not pay for it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    for label in labels:
        progress.add_task(label, total=None)
    return progress
