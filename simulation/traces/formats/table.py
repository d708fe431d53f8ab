"""Delimited text with a header: its cells, its rows, and what a trace format makes of them.

Reading is linear in the file's size and holds one line at a time. A row is one line: no cell of a trace spans lines, so
that a quotation mark left open spoils its own row only. A file that is no table raises `TraceError`.
"""

from __future__ import annotations

import csv
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from simulation.traces.trace import Rejected, StageTimes, Trace, TraceError, TraceJob, first_reasons

LONGEST_S = 1e10
"""Times above this (317 years) are taken for a mistake of units."""

SHORTEST_RUN_S = 0.001
"""Runs shorter than this are taken for a mistake of units."""

_SHORTEST_STAGES_S = 1e-9
MOST_GPUS = 1_000_000
MOST_ITERATIONS = 1e15
LARGEST_ID = 2**63 - 1
LONGEST_LABEL = 256
_SHOWN_CHARACTERS = 40
_EPOCH = datetime(1970, 1, 1)


class RowError(Exception):
    """A row that cannot be used. The message starts with the column, or with "row" where no single cell is at fault."""


def number(column: str, text: str, least: float, most: float) -> float:
    """A finite number from `least` to `most`. Raises `RowError`."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    # Python's own spellings (1_000, digits of other scripts) are in no trace on purpose. NaN fails the comparison.
    if not (least <= value <= most) or "_" in text or not text.isascii():
        raise RowError(f"{column}: found {shown(text)}, accepted: numbers from {least:,.15g} to {most:,.15g}")
    return value


def whole(column: str, text: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`; `8.0`, as spreadsheets write it, is 8. Raises `RowError`."""
    try:
        value = int(text)
    except ValueError:
        value = _from_decimal(text, least - 1)
    if not (least <= value <= most) or "_" in text or not text.isascii():
        raise RowError(f"{column}: found {shown(text)}, accepted: whole numbers from {least:,} to {most:,}")
    return value


def _from_decimal(text: str, otherwise: int) -> int:
    try:
        value = float(text)
    except ValueError:
        return otherwise
    # From 2**53 on a decimal no longer distinguishes neighbouring whole numbers.
    return int(value) if abs(value) < 2**53 and value.is_integer() else otherwise


def stage_times(columns: Sequence[str], texts: Sequence[str], units_per_s: float = 1.0) -> StageTimes:
    """The times of the three stages of an iteration, of which one takes time. Raises `RowError`."""
    times_s = [
        number(column, text, 0, LONGEST_S * units_per_s) / units_per_s
        for column, text in zip(columns, texts, strict=True)
    ]
    if sum(times_s) < _SHORTEST_STAGES_S:
        raise RowError(f"{', '.join(columns)}: found {shown(', '.join(texts))}, accepted: a stage that takes time")
    return StageTimes(*times_s)


@lru_cache(4096)  # equal names of many rows share one string
def label(column: str, text: str) -> str:
    """A name: up to 256 printable characters. Raises `RowError`, because names reach terminals."""
    if text.isprintable() and len(text) <= LONGEST_LABEL:
        return text
    raise RowError(f"{column}: found {shown(text)}, accepted: up to {LONGEST_LABEL} printable characters")


def date_time_s(column: str, text: str) -> float:
    """Seconds since 1970 of a time such as `2017-10-09 07:01:55` (or with a T), taken as UTC. Raises `RowError`."""
    try:
        # fromisoformat knows many more spellings, some with a zone; the marks let only this one through.
        if len(text) == 19 and text.isascii() and text[4] == text[7] == "-" and text[13] == text[16] == ":":
            return (datetime.fromisoformat(text) - _EPOCH).total_seconds()
    except ValueError:
        pass
    raise RowError(f"{column}: found {shown(text)}, accepted: times such as 2017-10-09 07:01:55")


def shown(text: str) -> str:
    """What was found, quoted, without control characters, cut to a readable length."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


MOST_LINE_BYTES = 1 << 26
"""As much as a job's reports may take in the spool: the curve of a training is one cell."""

csv.field_size_limit(MOST_LINE_BYTES)

_TEXT = "accepted: a text file in UTF-8"
ACCEPTED = f"{_TEXT} with a header line, see `sexplsched trace --help`"

_MAGIC = (
    (b"\x1f\x8b", "compressed with gzip; unpack it first, for example with `gunzip --keep`"),
    (b"BZh", "compressed with bzip2; unpack it first, for example with `bunzip2 --keep`"),
    (b"\xfd7zXZ\x00", "compressed with xz; unpack it first, for example with `unxz --keep`"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first, for example with `unzstd`"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet; unpack it, or export it as CSV"),
    (b"\xff\xfe", f"in UTF-16; {_TEXT}"),
    (b"\xfe\xff", f"in UTF-16; {_TEXT}"),
)

T = TypeVar("T")


class Table(Struct, frozen=True):
    """An open table: the name of its file, the names of its columns, and its rows, which can be read once.

    `header_line` is where the header stands. `lines` are the numbered lines below it, `split` makes the fields of one.
    """

    name: str
    header_line: int
    header: tuple[str, ...]
    lines: Iterator[tuple[int, str]]
    split: Callable[[str], list[str]]

    @property
    def where(self) -> str:
        """The header's place, as messages start."""
        return f"{self.name}: line {self.header_line}"

    def index(self, column: str) -> int | None:
        """Position of a column, whatever its case; None if there is none. Raises `TraceError` if there are two."""
        folded = column.casefold()
        found = [i for i, name in enumerate(self.header) if name.casefold() == folded]
        if len(found) > 1:
            raise TraceError(f"{self.where}: the header names column {column} {len(found)} times")
        return found[0] if found else None

    def position(self, column: str) -> int:
        """Position of a column that must be there. Raises `TraceError`."""
        at = self.index(column)
        if at is None:
            raise TraceError(f"{self.where}: the header lacks {column}")
        return at

    def cell(self, column: str) -> Callable[[list[str]], str]:
        """Takes a column's text out of a row; "" of every row if there is no such column."""
        at = self.index(column)
        return (lambda _row: "") if at is None else itemgetter(at)


@contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """Open a file as a table. Columns are separated by commas, or by bars if the header holds one (sacct's spelling).

    Raises `TraceError` for what is no such file: missing, a directory or device, empty, compressed, not UTF-8, with NUL
    bytes or with a line above 64 MiB. Some of these show only while rows are read.
    """
    with open_lines(path) as lines:
        yield table_of(lines, str(path))


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[tuple[int, str]]]:
    """Open a text file as numbered lines. Raises `TraceError` as `open_table` does, for all but an empty file."""
    with _open(path) as stream:
        yield _lines(stream, str(path))


def _open(path: Path) -> BinaryIO:
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise TraceError(f"{path}: {'a directory' if stat.S_ISDIR(mode) else 'a device or socket'}; {_TEXT}")
        return path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}; {_TEXT}") from error


def table_of(lines: Iterator[tuple[int, str]], name: str) -> Table:
    """The table that starts with the first of these lines that is not blank. Raises `TraceError`."""
    line, text = next(((line, text) for line, text in lines if text.strip()), (0, ""))
    if not line:
        raise TraceError(f"{name}: empty; {ACCEPTED}")
    where = f"{name}: line {line}"
    # sacct quotes nothing: a quotation mark there is a character like any other.
    split = _at_bars if "|" in text else _at_commas
    try:
        header = [field.strip() for field in split(text)]
    except csv.Error as error:
        raise TraceError(f"{where}: no header: {error}; {ACCEPTED}") from error
    if not any(header):
        raise TraceError(f"{where}: no header: found {shown(text)}; {ACCEPTED}")
    # The names reach terminals in messages.
    columns = tuple("".join(c if c.isprintable() else "?" for c in field) for field in header)
    return Table(name, line, columns, lines, split)


def _at_commas(line: str) -> list[str]:
    return next(csv.reader((line,), strict=True))


def _at_bars(line: str) -> list[str]:
    return next(csv.reader((line,), delimiter="|", quoting=csv.QUOTE_NONE))


def with_free_text_last(table: Table) -> Table:
    """The table, if at bars, with all further bars of a row in its last field: sacct does not mark those in a text."""
    if table.split is not _at_bars:
        return table
    bars = len(table.header) - 1
    return replace(table, split=lambda line: line.rstrip("\r\n").split("|", bars))


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    for line in count(1):
        try:
            raw = stream.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise TraceError(f"{name}: line {line}: {error.strerror}") from error
        if not raw:
            return
        if line == 1:
            for magic, what in _MAGIC:
                if raw.startswith(magic):
                    raise TraceError(f"{name}: {what}")
        if len(raw) > MOST_LINE_BYTES:
            raise TraceError(f"{name}: line {line} is longer than {MOST_LINE_BYTES:,} bytes; {_TEXT}")
        if b"\0" in raw:
            raise TraceError(f"{name}: line {line} holds a NUL byte; {_TEXT}")
        try:
            yield line, raw.decode("utf-8-sig")  # in joined files a later header may have a byte-order mark, too
        except UnicodeDecodeError as error:
            raise TraceError(f"{name}: line {line}: byte {error.start + 1} is not UTF-8; {_TEXT}") from error


def collect(table: Table, parse: Callable[[int, list[str]], T]) -> tuple[list[T], list[Rejected]]:
    """What `parse` makes of each row, and the rows it refused by raising `RowError`. Blank lines are no rows.

    Nor is the header where it stands again, as in joined files. Raises `TraceError` at a header of other columns, by
    which the rows below it would be misread. `parse` gets the row's line and as many fields as the header has.
    """
    width = len(table.header)
    header = [name.casefold() for name in table.header]
    names = frozenset(header)
    good: list[T] = []
    rejected: list[Rejected] = []
    for line, text in table.lines:
        try:
            fields = table.split(text)
            if 2 * len(names.intersection(map(str.casefold, fields))) > len(names):
                if [field.strip().casefold() for field in fields] != header:
                    raise TraceError(
                        f"{table.name}: line {line}: a header of other columns than that of line {table.header_line}; "
                        "join files of the same columns only"
                    )
            elif len(fields) == width:
                good.append(parse(line, fields))
            elif text.strip():
                raise RowError(f"row: found {len(fields)} fields, accepted: {width}, as the header has")
        except RowError as error:
            rejected.append(Rejected(line, str(error)))
        except csv.Error as error:
            hint = ", a quotation mark is left open" if text.count('"') % 2 else ""
            rejected.append(Rejected(line, f"row: {error}{hint}"))
    return good, rejected


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
