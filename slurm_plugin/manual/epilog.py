"""Epilogs of help texts, read as sections of a man page.

A line such as `examples:` at the left begins a section; what follows is indented, or stands on the same line.
"""

from __future__ import annotations

import inspect
import re

from msgspec import Struct

from slurm_plugin.manual.page import Entry

_HEADING = re.compile(r"(?i)(examples?|environment|files|exit status):[ ]*(.*)")


class Epilog(Struct, frozen=True):
    """The sections that were found; `rest` is what stands before the first."""

    rest: str = ""
    examples: str = ""
    exit_status: str = ""
    variables: tuple[Entry, ...] = ()
    files: tuple[Entry, ...] = ()


def read(text: str | None) -> Epilog:
    r"""The sections of an epilog, with or without click's `\b` marks."""
    sections: dict[str, list[str]] = {"": []}
    current = sections[""]
    for line in inspect.cleandoc((text or "").replace("\b", "")).splitlines():
        heading = _HEADING.fullmatch(line)
        if heading:
            current = sections.setdefault(heading[1].lower().removesuffix("s"), [])
            current += [heading[2]] if heading[2] else []
        else:
            current.append(line)
    return Epilog(
        rest="\n".join(sections[""]).strip(),
        examples=_block(sections, "example"),
        exit_status=_block(sections, "exit statu"),
        variables=_entries(_block(sections, "environment")),
        files=_entries(_block(sections, "file")),
    )


def _block(sections: dict[str, list[str]], name: str) -> str:
    return inspect.cleandoc("\n" + "\n".join(sections.get(name, []))).strip()


def _entries(block: str) -> tuple[Entry, ...]:
    """One entry a line: the term, two blanks or more, the meaning; deeper lines go on with it."""
    entries: list[Entry] = []
    for line in block.splitlines():
        term, _, meaning = line.partition("  ")
        if not term and entries:
            entries[-1] = Entry(entries[-1].term, f"{entries[-1].text} {line.strip()}")
        elif term:
            entries.append(Entry(term, meaning.strip()))
    return tuple(entries)
