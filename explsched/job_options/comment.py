"""Job options in the job's comment: one word, `explsched:` and a URL-encoded query.

`sbatch --comment="explsched:sweep=digits&checkpoint=USR1 my own words"`. The comment is the one field that every Slurm
version lets a user set, shows to everybody and keeps through a requeue.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

from explsched.job_options.table import SCHEDULED, Option

PREFIX = "explsched:"
CONTROL_VARIABLE = "EXPLSCHED_OPTIONS"
"""Variable of the job's control environment in which the SPANK plugin hands the query to job_submit.lua."""
UNQUOTED = "/@"
"""Characters that stand for themselves in a value, besides letters, digits and `_.-~`."""

_KEYS = {option.key: option for option in SCHEDULED}


def write(values: Mapping[str, str]) -> str:
    """The word that says these values, in the order of the table; empty if there are none."""
    pairs = [f"{o.key}={quote(values[o.name], safe=UNQUOTED)}" for o in SCHEDULED if values.get(o.name)]
    return PREFIX + "&".join(pairs) if pairs else ""


def words(comment: str) -> list[str]:
    """The words of a comment that are ours."""
    return [word for word in comment.split() if word.startswith(PREFIX)]


def read(comment: str) -> dict[str, str] | None:
    """Values in their canonical form by the option's name; None if the comment has no word of ours.

    Raises ValueError with what was found.
    """
    ours = words(comment)
    if not ours:
        return None
    if len(ours) > 1:
        raise ValueError(f"the comment has {len(ours)} entries starting with {PREFIX!r}, one is accepted")
    query = ours[0].removeprefix(PREFIX)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError as error:
        raise ValueError(f"{ours[0][:80]!r} is not of the form {PREFIX}key=value&key=value") from error
    unknown = [key for key, _ in pairs if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown key {unknown[0][:80]!r} in {ours[0][:80]!r} (known: {', '.join(_KEYS)})")
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"{ours[0][:80]!r} names a key twice")
    return {_KEYS[key].name: _canonical(_KEYS[key], text) for key, text in pairs if text}


def _canonical(option: Option, text: str) -> str:
    try:
        return option.canonical(text)
    except ValueError as error:
        raise ValueError(f"{option.key}: {error}") from error
