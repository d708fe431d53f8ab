"""Typesets pages with the macros of man(7)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurm_plugin.manual.page import Entry, Page

_ESCAPES = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti", "`": r"\(ga"})

_BREAK = "\u200b"  # a break without width, in Unicode; roff's own would be escaped
_LONG_WORD = 40


def render(page: Page, version: str) -> str:
    """The source of the page, for man and groff."""
    return "\n".join([*_lines(page, version), ""])


def _lines(page: Page, version: str) -> Iterator[str]:
    # Left-adjusted and not hyphenated: option names must not be torn apart.
    yield f'.TH {_plain(page.name).upper()} {page.section} "" "explsched {_plain(version)}" "explsched manual"'
    yield ".nh"
    yield ".ad l"
    yield ".SH NAME"
    yield f"{_plain(page.name)} \\- {_text(page.summary[:1].lower() + page.summary[1:])}"
    if page.synopsis:
        yield ".SH SYNOPSIS"
        yield _usage(page.synopsis)
    yield ".SH DESCRIPTION"
    yield from _paragraphs(page.description or page.summary)
    yield from _entries("OPTIONS", page.options)
    if page.parts:
        yield ".SH COMMANDS"
    for part in page.parts:
        yield f'.SS "{_plain(part.name)}"'
        yield _usage(part.synopsis)
        yield ".PP"
        yield from _paragraphs(part.description)
        yield from _tagged(part.options)
    yield from _entries(page.entries_title, page.entries)
    if page.exit_status:
        yield ".SH EXIT STATUS"
        yield _text(page.exit_status)
    yield from _entries("ENVIRONMENT VARIABLES", page.variables)
    if page.examples:
        yield ".SH EXAMPLES"
        yield from _verbatim(page.examples)
    yield from _entries("FILES", page.files)
    if page.see_also:
        yield ".SH SEE ALSO"
        yield ",\n".join(_reference(name) for name in page.see_also)


def _entries(title: str, entries: tuple[Entry, ...]) -> Iterator[str]:
    if entries:
        yield f".SH {title}"
        yield from _tagged(entries)


def _tagged(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        yield ".TP"
        yield f"\\fB{_plain(entry.term)}\\fR"
        yield _text(entry.text) or r"\&"


def _paragraphs(text: str) -> Iterator[str]:
    for i, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if i:
            yield ".PP"
        if paragraph.startswith("\b\n"):
            yield from _verbatim(paragraph[2:])
        else:
            yield _text(paragraph)


def _verbatim(text: str) -> Iterator[str]:
    yield ".EX"
    yield from (_guard(_plain(line)) for line in text.rstrip().splitlines())
    yield ".EE"


def _usage(words: str) -> str:
    return f"\\fB{_plain(words)}\\fR"


def _reference(name: str) -> str:
    page, bracket, section = name.partition("(")
    return f"\\fB{_plain(page)}\\fR{bracket}{section}"


def _text(text: str) -> str:
    """Running text on one line; what stands in backquotes is bold."""
    joined = " ".join(_breakable(word) for word in text.split())
    pieces = re.split(r"`([^`]+)`", joined)
    typeset = "".join(f"\\fB{_plain(p)}\\fR" if i % 2 else _plain(p) for i, p in enumerate(pieces))
    return _guard(typeset.replace(_BREAK, r"\:"))


def _breakable(word: str) -> str:
    """A list too long for a line may be broken after its commas."""
    return word.replace(",", f",{_BREAK}") if len(word) > _LONG_WORD else word


def _plain(text: str) -> str:
    return text.translate(_ESCAPES).replace('"', r"\(dq")


def _guard(line: str) -> str:
    """A line that roff does not take for a request."""
    return r"\&" + line if line.startswith((".", r"\(aq")) else line
