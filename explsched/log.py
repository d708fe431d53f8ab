"""Structured log lines: one line an event, `key=value` fields, job ids as fields."""

from __future__ import annotations

import json
import logging

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


def set_up(level: str, path: str | None) -> None:
    """Send the log to a file, or to standard error (journald) without one.

    Raises `LogError` for a file that cannot be opened; then the log goes on as before.
    """
    try:
        handler = logging.FileHandler(path, encoding="utf-8") if path else logging.StreamHandler()
    except OSError as error:
        raise LogError(f"log file {path}: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger("explsched")
    for old in tuple(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
