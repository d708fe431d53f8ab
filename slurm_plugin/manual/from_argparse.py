"""The page of a command whose options argparse reads."""

from __future__ import annotations

import argparse
import re

from slurm_plugin.manual import epilog
from slurm_plugin.manual.page import Entry, Page


def page(parser: argparse.ArgumentParser, section: int, see_also: tuple[str, ...]) -> Page:
    """The page of the command that `parser` serves."""
    end = epilog.read(parser.epilog)
    synopsis = parser.format_usage().removeprefix("usage: ")
    description = parser.description or ""
    return Page(
        parser.prog,
        section,
        description.partition(". ")[0].rstrip("."),
        synopsis=" ".join(synopsis.split()),
        description="\n\n".join(text for text in (description, end.rest) if text),
        options=_options(parser),
        exit_status=end.exit_status,
        variables=end.variables,
        examples=end.examples,
        files=end.files,
        see_also=see_also,
    )


def _options(parser: argparse.ArgumentParser) -> tuple[Entry, ...]:
    """Read from argparse's own help, which knows how options, their values and their defaults are shown."""
    formatter = argparse.HelpFormatter(parser.prog, indent_increment=2, max_help_position=4, width=10_000)
    for group in parser._action_groups:
        formatter.add_arguments(group._group_actions)
    entries: list[Entry] = []
    for line in formatter.format_help().splitlines():
        # A term begins in column 0 of the help without headings; a meaning is indented, or follows two blanks.
        term, _, meaning = line.strip().partition("  ")
        if entries and re.match(r" {4}", line):
            entries[-1] = Entry(entries[-1].term, f"{entries[-1].text} {line.strip()}".strip())
        elif term:
            entries.append(Entry(term, meaning.strip()))
    return tuple(entry for entry in entries if entry.text)  # what has no text is in the synopsis
