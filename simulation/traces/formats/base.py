"""What a format is: a name, the columns by which it is known, and how its rows become jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from simulation.traces.formats.table import Table, open_table
from simulation.traces.trace import Rejected, Trace, TraceError, TraceJob

_SHOWN = 3


class Format(Struct, frozen=True):
    """A trace format. A table is of this format if its header has all `required` columns, in any order and case."""

    name: str
    required: tuple[str, ...]
    parse: Callable[[Table], Trace]

    def missing(self, table: Table) -> tuple[str, ...]:
        """The required columns that a table lacks."""
        return tuple(column for column in self.required if table.index(column) is None)

    def require(self, table: Table) -> None:
        """Raise `TraceError` if a table is not of this format."""
        missing = self.missing(table)
        if missing:
            near = get_close_matches(missing[0], table.header, n=1)
            hint = f" (is {near[0]} meant to be {missing[0]}?)" if near else ""
            raise TraceError(
                f"{table.where}: the header lacks {', '.join(missing)}{hint}; "
                f"format {self.name} needs {', '.join(self.required)}"
            )

    def read(self, path: Path) -> Trace:
        """The jobs of a file. Raises `TraceError` if it is not of this format or no row can be used."""
        with open_table(path) as table:
            return self.read_table(table)

    def read_table(self, table: Table) -> Trace:
        """The jobs of an open table, see `read`."""
        self.require(table)
        trace = self.parse(table)
        if not trace.jobs:
            raise TraceError(f"{table.name}: no row can be used{first_reasons(trace.rejected)}")
        return trace


def first_reasons(rejected: Iterable[Rejected]) -> str:
    """The first rejected rows as the end of a message; nothing if there are none."""
    rows = list(rejected)
    if not rows:
        return ""
    listed = "; ".join(f"line {row.line}: {row.reason}" for row in rows[:_SHOWN])
    return f": {listed}" + (f"; and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else "")


def trace_of(jobs: Iterable[TraceJob], rejected: Iterable[Rejected], source_format: str) -> Trace:
    """A trace in which every job id is unique: of several jobs with one id all but the first are rejected."""
    first_line: dict[int, int] = {}
    kept: list[TraceJob] = []
    out = list(rejected)
    for job in jobs:
        line = first_line.setdefault(job.job_id, job.line)
        if line == job.line:
            kept.append(job)
        else:
            out.append(Rejected(job.line, f"job_id: {job.job_id} is already on line {line}"))
    return Trace.of(kept, sorted(out, key=lambda row: row.line), source_format)
