"""Trace formats, and reading a file in the format that its header has."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from simulation.traces.formats import own, public, sacct
from simulation.traces.formats.table import Format, Table, open_table
from simulation.traces.trace import Trace, TraceError

_FORMATS = {form.name: form for form in (own.FORMAT, own.SWEEP, public.MURI, public.PHILLY, sacct.FORMAT)}

NAMES = tuple(_FORMATS)
"""Names of the formats that can be read."""


def read_any(path: Path, format: str | None = None) -> Trace:  # noqa: A002  as the option is named
    """The jobs of a trace in the named format, or in the one whose columns its header has.

    Raises `TraceError` if the file is of no known format or no row can be used; rows that cannot be used are in
    `Trace.rejected`.
    """
    if format is not None and format not in _FORMATS:
        near = get_close_matches(format, NAMES, n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise TraceError(f"unknown trace format {format!r}{hint}, accepted: {', '.join(NAMES)}")
    with open_table(path) as table:
        return (_detect(table) if format is None else _FORMATS[format]).read_table(table)


def _detect(table: Table) -> Format:
    possible = [form for form in _FORMATS.values() if not form.missing(table)]
    if possible:
        return max(possible, key=lambda form: len(form.required))
    # A format of which at least half the columns are there is meant: its own message names what is missing.
    nearest = min(_FORMATS.values(), key=lambda form: len(form.missing(table)) / len(form.required))
    if 2 * len(nearest.missing(table)) <= len(nearest.required):
        return nearest
    accepted = "; ".join(f"{form.name} has {', '.join(form.required)}" for form in _FORMATS.values())
    raise TraceError(f"{table.where}: the header {_shown(table.header)} is of no known format: {accepted}")


def _shown(header: tuple[str, ...]) -> str:
    text = ",".join(header)
    return repr(text if len(text) <= 80 else text[:80] + "...")
