"""Tables of text: they fit the terminal, and are plain and whole when they go to a file or a pipe.

Widths are worked out here, because commands list tens of thousands of jobs, for which rich's tables take a second per
thousand; what is hard, the width of characters that are not ASCII, is rich's.
"""

from __future__ import annotations

import bisect
import csv
import io
import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal, TextIO

from msgspec import Struct

_GAP = "  "
_INDENT = "    "
_LEAST = 8
"""A column of text is not cut below this many characters."""
_WIDE, _BREAK = "\0", "\v"
"""Mark the second column of a wide character, and where a long list may be broken; no text has them (`printable`)."""
_LEAST_LAST = 24
"""The last column, where reasons stand, keeps this many before others are cut. Nor is shorter text cut beside it."""


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Column(Struct, frozen=True):
    """Heading and form of a column. `width` is exact, for those who parse; None is as wide as needed and as fits.

    Numbers (`align` ">") are never cut. Text is cut at its end where the terminal is too narrow, and the last column is
    wrapped at words instead.
    """

    title: str
    align: Literal["<", ">"] = "<"
    width: int | None = None


_NO_COLUMN = Column("", width=0)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sees it; a standard stream is None if it was closed at the start (`>&-`)."""
    return stream is not None and stream.isatty()


def room() -> int | None:
    """Characters that a line may have: those of the terminal, None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def lines(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], width: int | None, *, heading: bool = True
) -> list[str]:
    """The table as lines of at most `width` characters, if that can be; None as a cell is shown as "-".

    Where there is no room for the last column beside the others, its words stand below them, and so do those of the
    columns before it: a time or hyper-parameters that are cut tell nothing.
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    if heading:
        texts.insert(0, [column.title for column in columns])
    natural = [_natural(column, texts, at) for at, column in enumerate(columns)]
    beside = len(columns) if width is None else _beside(columns, natural, width)
    if width is not None and beside < len(columns):
        above = _fitted((*columns[:beside], _NO_COLUMN), (*natural[:beside], 0), width + len(_GAP))  # the whole line
        return [line for row in texts for line in _stacked(columns, row, above[:-1], width)]
    widths = _fitted(columns, natural, width)
    return [line for row in texts for line in _row_lines(columns, row, widths)]


def _beside(columns: Sequence[Column], natural: Sequence[int], room: int) -> int:
    """How many columns stand side by side: as many as fit if only long text is cut, all if none may stand below."""
    if len(columns) < 2 or columns[-1].width is not None:
        return len(columns)
    least = _least(columns, natural, _LEAST_LAST)
    if _span([*least[:-1], min(natural[-1], _LEAST_LAST)]) <= room:
        return len(columns)
    return next((count for count in range(len(columns) - 1, 1, -1) if _span(least[:count]) <= room), 1)


def _least(columns: Sequence[Column], natural: Sequence[int], longest_whole: int) -> list[int]:
    """Widths below which nothing is cut, where text of up to `longest_whole` characters stays whole."""
    return [
        _LEAST if column.align == "<" and column.width is None and width > longest_whole else width
        for column, width in zip(columns, natural, strict=True)
    ]


def _span(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _text(cell: object) -> str:
    """A cell for people. Names are users' free text."""
    return printable("-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell))


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """CSV; what a spreadsheet would take for a formula, as a job's name may be, gets an apostrophe in front."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_no_formula(cell) for cell in row] for row in rows)
    return text.getvalue()


def _no_formula(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(_FORMULA) or cell == "-":
        return cell
    try:
        _ = float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def printable(text: str) -> str:
    """A text without control characters, which must not reach a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _natural(column: Column, texts: Sequence[Sequence[str]], at: int) -> int:
    return max((_length(row[at]) for row in texts), default=0) if column.width is None else column.width


def _fitted(columns: Sequence[Column], natural: Sequence[int], room: int | None) -> list[int]:
    """Widths that fit, as far as can be: the last column gives way first, then long text, then all text."""
    widths = list(natural)
    if room is None:
        return widths
    excess = _span(widths) - room
    if excess > 0 and columns[-1].align == "<" and columns[-1].width is None:
        widths[-1] -= min(excess, max(0, widths[-1] - _LEAST_LAST))
    for longest_whole in (_LEAST_LAST, _LEAST):
        least = [*_least(columns[:-1], natural[:-1], longest_whole), widths[-1]]
        while _span(widths) > room and widths != least:
            widest = max((at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__)
            widths[widest] -= 1
    return widths


def _row_lines(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> list[str]:
    *front, last = [_cell(text, column, width) for text, column, width in zip(row, columns, widths, strict=True)]
    begin = "".join(cell + _GAP for cell in front)
    if columns[-1].width is not None or columns[-1].align == ">" or _length(row[-1]) <= widths[-1]:
        return [(begin + last).rstrip()]
    wrapped = _wrapped(row[-1], widths[-1]) or [""]
    indent = " " * _length(begin)
    return [(begin + wrapped[0]).rstrip(), *(indent + more for more in wrapped[1:])]


def _stacked(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], room: int) -> list[str]:
    """The cells for which there are widths, and the others below them."""
    cells = [_cell(text, column, width) for text, column, width in zip(row, columns, widths, strict=False)]
    others = _GAP.join(text for text in row[len(widths) :] if text)
    below = _wrapped(others, room - len(_INDENT))
    return [_GAP.join(cells).rstrip(), *(_INDENT + line for line in below)]


def _wrapped(text: str, width: int) -> list[str]:
    """The text as lines of at most `width` columns of a terminal, broken at words; lists without spaces at commas."""
    words = (word if len(word) <= width else word.replace(",", f",{_BREAK}") for word in text.split(" "))
    marked = " ".join(words)
    if not marked.isascii():
        from rich.cells import get_character_cell_size

        marked = "".join(_WIDE + one if get_character_cell_size(one) > 1 else one for one in marked)
        width = max(1, width - 1)  # a break between a mark and its character gives the second line one column more
    unmarked = str.maketrans("", "", _WIDE + _BREAK)
    return [line.translate(unmarked) for line in textwrap.wrap(marked, width, replace_whitespace=False)]


def _cell(text: str, column: Column, width: int) -> str:
    length = _length(text)
    if length > width:
        text = _begin(text, width) if column.width is not None else _begin(text, width - 1) + "…"
        length = _length(text)
    fill = " " * (width - length)
    return fill + text if column.align == ">" else text + fill


def _begin(text: str, width: int) -> str:
    """As much of the text as takes at most `width` columns of a terminal."""
    if text.isascii():
        return text[:width]
    from rich.cells import get_character_cell_size

    ends = list(itertools.accumulate(map(get_character_cell_size, text)))
    return text[: bisect.bisect_right(ends, width)]


def _length(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
