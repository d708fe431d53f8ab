"""Acting as another user within a test, which must run as root."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def user(uid: int) -> Iterator[None]:
    """The process acts as this user meanwhile."""
    gc.collect()  # what earlier tests have left, such as semaphores of processes, root alone can remove
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
