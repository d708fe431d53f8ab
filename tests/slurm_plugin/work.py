"""Work for worker processes, which must be importable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from explsched.errors import PolicyError

Progress = Callable[[int, int], None]


def square(number: int, progress: Progress) -> tuple[int, int]:
    """The square, and the process that computed it. Small numbers take longer, so that they finish last."""
    progress(number, 10)
    time.sleep(0.05 * (10 - number))
    return number * number, os.getpid()


def fail_at_two(number: int, progress: Progress) -> int:
    if number == 2:
        raise PolicyError("two is not accepted")
    time.sleep(600)
    return number


def vanish(_number: int, _progress: Progress) -> None:
    os._exit(9)


def hold(directory: Path, _progress: Progress) -> None:
    """Tell the process's id by a file's name, and go on for long."""
    (directory / str(os.getpid())).touch()
    time.sleep(600)
