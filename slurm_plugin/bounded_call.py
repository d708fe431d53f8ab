"""Calls into a file system that may hang for hours, as a network's does: waited for, but not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BoundedCall:
    """One call at a time, in a thread that ends with the process. The kernel lets nobody break off such a call."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, call: Callable[[], None]) -> bool:
        """Whether the call has come back in time. While an earlier one hangs nothing is called.

        Raises what the call raises; what one raises that has been given up is lost.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        self._error = None
        self._thread = threading.Thread(target=self._attempt, args=(call,), daemon=True)
        self._thread.start()
        self._thread.join(self.patience_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # raised again where it is waited for
            self._error = error
