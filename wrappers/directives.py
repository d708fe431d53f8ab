"""What a batch script says about its own submission: `#SXBATCH` lines, and the comment in its `#SBATCH` lines."""

from __future__ import annotations

import shlex
from pathlib import Path

from wrappers.sbatch_options import split


def read_script(path: Path) -> str | None:
    """The text of a script; None for what is no file, which is sbatch's to judge. Raises ValueError if unreadable.

    A pipe, as in `sxbatch <(make-script)`, is left alone: it can be read only once.
    """
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def words(script: str, mark: str) -> list[tuple[int, list[str]]]:
    """The (line number, words) of the lines starting with `mark`, such as #SBATCH, up to the first command.

    There sbatch stops reading, too. Raises ValueError for unbalanced quotes.
    """
    found = []
    for number, line in enumerate(script.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith(mark) and line[len(mark) : len(mark) + 1].isspace():
            try:
                found.append((number, shlex.split(line.removeprefix(mark), comments=True)))
            except ValueError as error:
                raise ValueError(f"line {number} of the script: {mark}: {error}") from error
    return found


def sbatch_comment(script: str) -> str | None:
    """The comment that the script's #SBATCH lines give the job. The last one counts."""
    comment = None
    for _, line in words(script, "#SBATCH"):
        for option in split(line, {}).options:
            comment = option.value if option.name == "comment" else comment
    return comment
