"""Command lines of the documentation: fenced `sh` blocks. One that is not run has a comment above it that says why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block. `reason` says why its commands are not run; None if they are."""

    page: Path
    language: str
    text: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [
        Block(page, found["language"], found["text"], found["reason"]) for found in _BLOCK.finditer(page.read_text())
    ]


def commands(page: Path) -> list[Block]:
    """The blocks of a page that are command lines."""
    return [block for block in blocks(page) if block.language == "sh"]
