"""Calls into a file system that may hang for hours, as a network's does: waited for, but not for ever."""

from __future__ import annotations

import _thread
import errno
import threading
from collections.abc import Callable


class BoundedCall:
    """One call at a time, in a thread that ends with the process. The kernel lets nobody break off such a call."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._latest: _Attempt | None = None

    def run(self, call: Callable[[], None]) -> bool:
        """Whether the call has come back in time. While an earlier one hangs nothing is called.

        Raises what the call raises, and `OSError` if there is no memory for a thread; what a call raises that has been
        given up is lost.
        """
        if self._latest is not None and self._latest.has_begun and not self._latest.has_ended.is_set():
            return False
        self._latest = attempt = _Attempt(call)
        try:
            # `Thread.start` waits without end for a thread that finds no memory to begin.
            _thread.start_new_thread(attempt.run, ())
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"{error}: memory or processes are used up") from error
        if not attempt.has_ended.wait(self.patience_s):
            return False
        if attempt.error is not None:
            raise attempt.error
        return True


class _Attempt:
    """One call, and what became of it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.has_begun = False
        self.has_ended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call, in the thread that nobody waits for without end."""
        self.has_begun = True
        try:
            self._call()
        except BaseException as error:  # raised again where it is waited for
            self.error = error
        finally:
            self.has_ended.set()
