"""What `sexplsched doctor` has to say about one thing."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """One check. `advice` says what to do; it is empty where all is well. `level` is ok, note or fault."""

    check: str
    level: str
    found: str
    advice: str = ""
