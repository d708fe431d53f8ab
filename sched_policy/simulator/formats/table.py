"""Opens delimited text with a header, row by row, whatever is in it.

Reading is linear in the file's size and holds one line at a time. A row that cannot be used never stops the others; a
file that is no table raises `TraceError`.
"""

from __future__ import annotations

import csv
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from sched_policy.simulator.formats.cells import RowError, shown
from sched_policy.simulator.trace import Rejected, TraceError

MOST_LINE_BYTES = 1 << 20
ACCEPTED = "accepted is a text file in UTF-8 with a header line, see `sexplsched trace --help`"

_MAGIC = (
    (b"\x1f\x8b", "compressed with gzip; unpack it first, for example with `gunzip --keep`"),
    (b"BZh", "compressed with bzip2; unpack it first, for example with `bunzip2 --keep`"),
    (b"\xfd7zXZ\x00", "compressed with xz; unpack it first, for example with `unxz --keep`"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first, for example with `unzstd`"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet; unpack it, or export it as CSV"),
    (b"\xff\xfe", f"in UTF-16; {ACCEPTED}"),
    (b"\xfe\xff", f"in UTF-16; {ACCEPTED}"),
)

T = TypeVar("T")


class _Reader(Protocol):
    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Table:
    """An open table: the name of its file, the names of its columns, and its rows, which can be read once."""

    name: str
    header: tuple[str, ...]
    reader: _Reader

    def index(self, column: str) -> int | None:
        """Position of a column, whatever its case; None if there is no such column."""
        folded = column.casefold()
        return next((i for i, name in enumerate(self.header) if name.casefold() == folded), None)

    def position(self, column: str) -> int:
        """Position of a column that must be there. Raises `TraceError`."""
        at = self.index(column)
        if at is None:
            raise TraceError(f"{self.name}: line 1: no column {column}, found are {', '.join(self.header)}")
        return at

    def cell(self, column: str) -> Callable[[list[str]], str]:
        """Takes a column's text out of a row; "" of every row if there is no such column."""
        at = self.index(column)
        return (lambda _row: "") if at is None else itemgetter(at)


@contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """Open a file as a table. Columns are separated by commas, or by bars if the header holds one (sacct's spelling).

    Raises `TraceError` for what is no such file: missing, a directory or device, empty, compressed, not UTF-8, with NUL
    bytes, with a line above 1 MiB, or with a header that names a column twice. Some of these show only while rows are
    read.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise TraceError(f"{path}: {'a directory' if stat.S_ISDIR(mode) else 'a device or socket'}; {ACCEPTED}")
        with path.open("rb") as stream:
            start = stream.peek(8)
            for magic, what in _MAGIC:
                if start.startswith(magic):
                    raise TraceError(f"{path}: {what}")
            yield _table(stream, str(path))
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}; {ACCEPTED}") from error


def _table(stream: BinaryIO, name: str) -> Table:
    lines = _lines(stream, name)
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    else:
        raise TraceError(f"{name}: empty; {ACCEPTED}")
    reader = _reader(chain(head, lines), head[-1])
    try:
        header = next(fields for fields in reader if any(field.strip() for field in fields))
    except (csv.Error, StopIteration) as error:
        raise TraceError(f"{name}: line {len(head)}: no header: {error or shown(head[-1])}; {ACCEPTED}") from error
    names = [field.strip() for field in header]
    seen: set[str] = set()
    for column in names:
        if column.casefold() in seen:
            raise TraceError(f"{name}: line {len(head)}: the header names column {shown(column)} twice")
        seen.add(column.casefold())
    return Table(name, tuple(names), reader)


def _reader(lines: Iterator[str], header: str) -> _Reader:
    # sacct quotes nothing: a quotation mark there is a character like any other.
    if "|" in header:
        return csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE)
    return csv.reader(lines, strict=True)


def _lines(stream: BinaryIO, name: str) -> Iterator[str]:
    for line in count(1):
        raw = stream.readline(MOST_LINE_BYTES + 1)
        if not raw:
            return
        if len(raw) > MOST_LINE_BYTES:
            raise TraceError(f"{name}: line {line} is longer than {MOST_LINE_BYTES:,} bytes; {ACCEPTED}")
        if b"\0" in raw:
            raise TraceError(f"{name}: line {line} holds a NUL byte; {ACCEPTED}")
        try:
            yield raw.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TraceError(f"{name}: line {line}: byte {error.start + 1} is not UTF-8; {ACCEPTED}") from error


def collect(table: Table, parse: Callable[[int, list[str]], T]) -> tuple[list[T], list[Rejected]]:
    """What `parse` makes of each row, and the rows it refused by raising `RowError`. Blank lines are no rows.

    `parse` gets the number of the row's first line and as many fields as the header has.
    """
    width = len(table.header)
    reader = table.reader
    good: list[T] = []
    rejected: list[Rejected] = []
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
            if len(fields) != width:
                if not any(field.strip() for field in fields):
                    continue
                raise RowError(f"row: found {len(fields)} fields, accepted are {width}, as the header has")
            good.append(parse(line, fields))
        except StopIteration:
            return good, rejected
        except (RowError, csv.Error) as error:
            reason = str(error) if isinstance(error, RowError) else f"row: {error}"
            if reader.line_num > line:
                reason += f" (lines {line} to {reader.line_num}: is a quotation mark left open?)"
            rejected.append(Rejected(line, reason))
