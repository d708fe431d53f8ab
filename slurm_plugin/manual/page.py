"""What a man page says, before it is typeset. All texts are plain; `words` in backquotes are set in bold."""

from __future__ import annotations

from msgspec import Struct


class Entry(Struct, frozen=True):
    """A term and what it means: an option, a variable, a key, a file."""

    term: str
    text: str


class Part(Struct, frozen=True):
    """A command of a command, explained on the page of the latter."""

    name: str
    synopsis: str
    description: str
    options: tuple[Entry, ...]


class Page(Struct, frozen=True):
    r"""One man page; empty parts are left out of it.

    `description` has paragraphs separated by blank lines; one that begins with a line `\b` is kept line by line, as in
    click's help texts.
    """

    name: str
    section: int
    summary: str
    synopsis: str = ""
    description: str = ""
    options: tuple[Entry, ...] = ()
    parts: tuple[Part, ...] = ()
    entries: tuple[Entry, ...] = ()
    entries_title: str = ""
    exit_status: str = ""
    variables: tuple[Entry, ...] = ()
    examples: str = ""
    files: tuple[Entry, ...] = ()
    see_also: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Such as sexplsched.1."""
        return f"{self.name}.{self.section}"
