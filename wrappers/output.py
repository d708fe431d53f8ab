"""A command's output, passed through unchanged and at once while progress is read from it."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from fcntl import ioctl

from wrappers.follow import Reporter

LAST_OUTPUT_S = 5.0
"""So long we wait for what others write that have the command's output, `tee` in a process substitution, say."""
_STDOUT = 1
_MOST = 1 << 16


class OutputReader:
    """Passes a command's output through until all that have it are done, or for a while after the command's end.

    What the command itself has written is passed on, however long that takes. A background process of it may hold its
    output open, or write, for ever.
    """

    def __init__(self, child: subprocess.Popen[bytes], reporter: Reporter) -> None:
        """Raises ValueError for a command whose output is no pipe."""
        if child.stdout is None:
            raise ValueError("the command's output is not a pipe of ours")
        self._output = child.stdout
        self._reporter = reporter
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)

    def end(self) -> None:
        """Say that the command has ended."""
        os.eventfd_write(self._ended, 1)

    def follow(self) -> None:
        """Pass on and report until the end."""
        if self._follow_command() and self._follow_others():
            self._reporter.close()

    def _follow_command(self) -> bool:
        """Up to the last byte that was written before the command's end; whether our own reader still reads."""
        source = self._output.fileno()
        waiting = select.poll()
        for descriptor in (source, self._ended):
            waiting.register(descriptor, select.POLLIN)
        while self._ended not in dict(waiting.poll()):
            if not (data := os.read(source, _MOST)):
                return True
            if not self._pass_on(data):
                return False
        left = struct.unpack("i", ioctl(source, termios.FIONREAD, bytes(4)))[0]
        while left and (data := os.read(source, min(left, _MOST))):
            left -= len(data)
            if not self._pass_on(data):
                return False
        return True

    def _follow_others(self) -> bool:
        """For the while after the command's end; whether our own reader still reads."""
        source = self._output.fileno()
        until_s = time.monotonic() + LAST_OUTPUT_S
        while (left_s := until_s - time.monotonic()) > 0 and select.select([source], [], [], left_s)[0]:
            if not (data := os.read(source, _MOST)):
                break
            if not self._pass_on(data):
                return False
        return True

    def _pass_on(self, data: bytes) -> bool:
        """Whether our own reader still reads."""
        try:
            _write(data)
        except BrokenPipeError:
            self._output.close()  # nobody reads on: the command learns it as it would without us
            return False
        except OSError as error:  # a full disk: the command must not stop because a pipe is not emptied
            self._reporter.warn(f"output is lost: {error.strerror}")
        self._reporter.feed(data)
        return True


class Follower:
    """A thread that reads progress from what a command prints or writes."""

    def __init__(self, reporter: Reporter, follow: Callable[[], None], end: Callable[[], None]) -> None:
        """`follow` feeds the reporter until some time after `end` has been called."""
        self._reporter = reporter
        self._end = end
        self._thread = threading.Thread(target=follow, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The command has ended: wait for what it has left, as long as lines are found. What is not taken is lost."""
        self._end()
        before = -1
        while self._thread.is_alive() and before < self._reporter.lines:
            before = self._reporter.lines
            self._thread.join(2 * LAST_OUTPUT_S)
        if self._thread.is_alive():
            self._reporter.warn("the last that the command printed or wrote is lost: it could not be passed on or read")


def _write(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(_STDOUT, data) :]
        except BlockingIOError:  # the command has made our pipe, its stderr, non-blocking, as Node.js does
            select.select([], [_STDOUT], [])
