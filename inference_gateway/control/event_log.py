"""The event log: one JSON object a line, each with its reason.

A full disk must not stop the gateway: lines that cannot be written are counted, and the count is written later.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from explsched.log import event

_LOG = logging.getLogger("explsched.gateway")
_LARGEST_BYTES = 16 * 1024 * 1024


class EventLog:
    """Appends events to a file; a large one is kept once, as `FILE.1`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost = 0

    def note(self, what: str, service: str = "", /, **fields: object) -> None:
        """Write one event. Fields that are None are left out."""
        now_s = time.time()
        record = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now_s)), "unix_s": round(now_s, 3)}
        record |= {"event": what, **({"service": service} if service else {})}
        record |= {key: value for key, value in fields.items() if value is not None}
        event(_LOG, logging.INFO, what, service=service, **fields)
        try:
            self._write(record)
        except OSError as error:
            if not self._lost:
                event(_LOG, logging.ERROR, "events are lost", file=str(self._path), why=error.strerror or str(error))
            self._lost += 1

    def _write(self, record: dict[str, object]) -> None:
        if self._lost:
            record = {**record, "lost_before": self._lost}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            size = file.tell()
        self._lost = 0
        if size > _LARGEST_BYTES:
            self._path.replace(self._path.with_name(self._path.name + ".1"))


class Outage:
    """Writes down that somebody does not answer, or answers again: once, not every second."""

    def __init__(self, who: str, events: EventLog) -> None:
        self._who = who
        self._events = events
        self._fault = ""

    def note(self, fault: str) -> None:
        """How the last call ended; empty if it was answered."""
        if fault != self._fault:
            self._fault = fault
            self._events.note(
                f"{self._who} does not answer" if fault else f"{self._who} answers again", reason=fault or None
            )
