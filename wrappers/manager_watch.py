"""Keeps the kernel manager alive that several jobs share.

The job that started it may end first, and Slurm ends all processes of a job that has ended. The interposers of the
others let all kernels pass meanwhile and find the next manager by themselves, so somebody only has to start it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from wrappers import kernel_manager
from wrappers.installed import NotInstalledError
from wrappers.job_room import JobRoom

_LOOK_S = 1.0
_MOST_STARTS = 20  # a manager that always dies must not be started for ever


@contextmanager
def kept_alive(
    room: JobRoom, policy: str, environment: Mapping[str, str], unblock: Callable[[], None]
) -> Iterator[None]:
    """Look after the room's manager in a thread, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        starts = 0
        while starts < _MOST_STARTS and not ended.wait(_LOOK_S):
            if kernel_manager.listens(room.path):
                continue
            starts += 1
            try:
                with room.locked():
                    kernel_manager.start(room.path, policy, environment, unblock)
            except (OSError, NotInstalledError, kernel_manager.ManagerError) as error:
                sys.stderr.write(f"sxrun: kernels are not managed for the moment: {error}\n")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
