"""Structured log lines: one line an event, `key=value` fields, job ids as fields."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import suppress

from explsched.errors import ExplschedError


class LogError(ExplschedError):
    """The log file cannot be opened."""


def event(logger: logging.Logger, level: int, message: str, /, **fields: object) -> None:
    """Log one event. Text values are quoted as JSON strings, so that a line stays one line whatever is in them."""
    parts = [message, *(f"{key}={_value(value)}" for key, value in fields.items())]
    logger.log(level, "%s", " ".join(parts))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, str) else str(value)


_REPEATED_S = 600.0
"""So often a fault that lasts is told again."""


class LastingFault:
    """A fault that is found again and again: worth a word at first, in other words, and every ten minutes."""

    def __init__(self) -> None:
        self._words = ""
        self._told_s = 0.0

    def level(self, words: str, now_s: float) -> int:
        """At which level to log it now: `ERROR`, or `DEBUG` for what has just been said. `now_s` is monotonic."""
        if words == self._words and now_s < self._told_s + _REPEATED_S:
            return logging.DEBUG
        self._words, self._told_s = words, now_s
        return logging.ERROR

    def end(self) -> bool:
        """Whether it was there until now; the next one is told at once."""
        was_there, self._words = bool(self._words), ""
        return was_there


class _LogFile(logging.FileHandler):
    """A log that says on standard error that it cannot be written, rather than a traceback for each event."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8")
        self._lasting = LastingFault()

    def flush(self) -> None:
        """As `emit` does after each event: whatever waited has been written. Raises `OSError`."""
        super().flush()
        self._lasting.end()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        """Tell of a full disk and the like; anything else is a mistake of ours, with a traceback."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        words = f"log file {self.baseFilename} not written: {error.strerror or error}"
        if sys.stderr is not None and self._lasting.level(words, time.monotonic()) == logging.ERROR:
            with suppress(OSError):  # there may be as little room
                sys.stderr.write(words + "\n")


def set_up(level: str, path: str | None) -> None:
    """Send the log to a file, or to standard error (journald) without one.

    Raises `LogError` for a file that cannot be opened; then the log goes on as before.
    """
    try:
        handler = _LogFile(path) if path else logging.StreamHandler()
    except OSError as error:
        raise LogError(f"log file {path}: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger("explsched")
    for old in tuple(root.handlers):
        root.removeHandler(old)
        with suppress(OSError):  # on a full disk, for what it could not write; it is closed all the same
            old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
