"""The Python that runs this process, for programs of ours in processes of their own.

`python -m` and `python -c` look for modules in the working directory first. That may be /tmp, or any other directory in
which another user has put a file with the name of a module: it would run as whoever has started us.
"""

from __future__ import annotations

import sys


def of_module(module: str, *words: str) -> list[str]:
    """The command that runs a module of this installation."""
    return [*_python(), "-m", module, *words]


def of_code(code: str) -> list[str]:
    """The command that runs a text."""
    return [*_python(), "-c", code]


def _python() -> list[str]:
    """Without modules of the working directory; without the environment's, too, where ours are left out (-I)."""
    return [sys.executable, "-I" if sys.flags.isolated else "-P"]
