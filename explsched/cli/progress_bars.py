"""Progress bars on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_S = 1.0
Report = Callable[[int, int, int], None]
"""Takes (which bar, units done, units in all)."""


@contextmanager
def bars(labels: Sequence[str]) -> Iterator[Report]:
    """One bar for each label. They appear after a second, on a terminal only, and vanish at the end."""
    appear_s = time.monotonic() + _PATIENCE_S if sys.stderr.isatty() else float("inf")
    shown: Progress | None = None
    with ExitStack() as stack:

        def report(bar: int, done: int, total: int) -> None:
            nonlocal shown
            if shown is None:
                if time.monotonic() < appear_s:
                    return
                shown = stack.enter_context(_progress(labels))
            shown.update(shown.task_ids[bar], completed=done, total=total)

        yield report


def _progress(labels: Sequence[str]) -> Progress:
    # Imported late: short commands must not pay for it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    for label in labels:
        progress.add_task(label, total=None)
    return progress
