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
