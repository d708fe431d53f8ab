"""Job scripts as Jinja2 templates, rendered by `sxbatch --template`, and Jinja2 for shell scripts of any kind.

Every inserted value is quoted as one word, so that nothing in a value is executed.

The filter `q` quotes what an expression joins; `shell` inserts a person's own shell lines as they are.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2


class _Shell(str):
    """Text that is shell already."""

    __slots__ = ()


def quote(value: object) -> str:
    """The value as one word of shell. Raises `ValueError` for NUL, which cannot be in an argument at all."""
    if isinstance(value, _Shell):
        return value
    text = str(value)
    if "\0" in text:
        raise ValueError(f"{text!r} holds a NUL byte")
    return _Shell(shlex.quote(text))


def shell_environment() -> jinja2.Environment:
    """An environment that quotes. Raises `ImportError` without Jinja2."""
    import jinja2

    made = jinja2.Environment(  # noqa: S701  the output is shell, not HTML: see `quote`
        undefined=jinja2.StrictUndefined, finalize=quote, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["q"] = quote
    made.filters["shell"] = _Shell
    return made
