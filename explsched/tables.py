"""Tables of text: they fit the terminal, and are plain and whole when they go to a file or a pipe.

Widths are worked out here, because commands list tens of thousands of jobs, for which rich's tables take a second per
thousand; what is hard, the width of characters that are not ASCII, is rich's.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

_GAP = "  "
_INDENT = "    "
_LEAST = 8
"""A column of text is not cut below this many characters."""
_LEAST_LAST = 24
"""The last column, where reasons stand, keeps this many before others are cut."""


class Column(Struct, frozen=True):
    """Heading and form of a column. `width` is exact, for those who parse; None is as wide as needed and as fits.

    Numbers (`align` ">") are never cut. Text is cut at its end where the terminal is too narrow, and the last column is
    wrapped at words instead.
    """

    title: str
    align: Literal["<", ">"] = "<"
    width: int | None = None


_NO_COLUMN = Column("", width=0)


def room() -> int | None:
    """Characters that a line may have: those of the terminal, None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lines(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], width: int | None, *, heading: bool = True
) -> list[str]:
    """The table as lines of at most `width` characters, if that can be; None as a cell is shown as "-".

    Where there is no room for the last column beside the others, its words stand below them.
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    if heading:
        texts.insert(0, [column.title for column in columns])
    natural = [_natural(column, texts, at) for at, column in enumerate(columns)]
    widths = _fitted(columns, natural, width)
    is_too_wide = width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width
    if width is not None and is_too_wide and len(columns) > 1 and columns[-1] == Column(columns[-1].title):
        above = _fitted((*columns[:-1], _NO_COLUMN), (*natural[:-1], 0), width + len(_GAP))  # they have the whole line
        return [line for row in texts for line in _stacked(columns, row, above, width)]
    return [line for row in texts for line in _row_lines(columns, row, widths)]


def _text(cell: object) -> str:
    """A cell for people. Names are users' free text."""
    return printable("-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell))


def printable(text: str) -> str:
    """A text without control characters, which must not reach a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _natural(column: Column, texts: Sequence[Sequence[str]], at: int) -> int:
    return max((_length(row[at]) for row in texts), default=0) if column.width is None else column.width


def _fitted(columns: Sequence[Column], natural: Sequence[int], room: int | None) -> list[int]:
    """Widths that fit, as far as can be: first the last column gives way, then the widest column of text, and so on."""
    widths = list(natural)
    if room is None:
        return widths
    last = len(widths) - 1
    least = [
        min(width, _LEAST_LAST if at == last else _LEAST) if column.align == "<" and column.width is None else width
        for at, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]
    excess = sum(widths) + len(_GAP) * last - room
    while excess > 0 and widths != least:
        cuttable = [at for at in range(last + 1) if widths[at] > least[at]]
        at = last if last in cuttable else max(cuttable, key=widths.__getitem__)
        cut = min(excess, widths[at] - least[at]) if at == last else 1
        widths[at] -= cut
        excess -= cut
    return widths


def _row_lines(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> list[str]:
    *front, last = [_cell(text, column, width) for text, column, width in zip(row, columns, widths, strict=True)]
    begin = "".join(cell + _GAP for cell in front)
    if columns[-1].width is not None or columns[-1].align == ">" or _length(row[-1]) <= widths[-1]:
        return [(begin + last).rstrip()]
    wrapped = textwrap.wrap(row[-1], widths[-1]) or [""]
    indent = " " * _length(begin)
    return [(begin + wrapped[0]).rstrip(), *(indent + more for more in wrapped[1:])]


def _stacked(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], room: int) -> list[str]:
    cells = [_cell(text, column, width) for text, column, width in zip(row, columns, widths, strict=True)]
    below = textwrap.wrap(row[-1], room, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return [_GAP.join(cells[:-1]).rstrip(), *below]


def _cell(text: str, column: Column, width: int) -> str:
    length = _length(text)
    if length > width:
        text = text[:width] if column.width is not None else text[: width - 1] + "…"
        length = _length(text)
    fill = " " * (width - length)
    return fill + text if column.align == ">" else text + fill


def _length(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
