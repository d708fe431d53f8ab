"""Job options in the job's comment: one word, `explsched:` and a URL-encoded query.

`sbatch --comment="explsched:sweep=digits&checkpoint=USR1 my own words"`. The comment is the one field that every Slurm
version lets a user set, shows to everybody and keeps through a requeue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

from explsched.job_options.table import SCHEDULED, Option
from explsched.job_options.values import Fraction, is_former

PREFIX = "explsched:"
CONTROL_VARIABLE = "EXPLSCHED_OPTIONS"
"""Variable of the job's control environment in which the SPANK plugin hands the query to job_submit.lua."""
UNQUOTED = "/@"
"""Characters that stand for themselves in a value, besides letters, digits and `_.-~`."""

_KEYS = {option.key: option for option in SCHEDULED}
_FORMER = {key: option for option in SCHEDULED for key in option.former.keys}


class Word(NamedTuple):
    """Values in their canonical form by the option's name, and warnings about former spellings."""

    values: dict[str, str]
    warnings: tuple[str, ...]


def write(values: Mapping[str, str]) -> str:
    """The word that says these values, in the order of the table; empty if there are none."""
    pairs = [f"{o.key}={quote(values[o.name], safe=UNQUOTED)}" for o in SCHEDULED if values.get(o.name)]
    return PREFIX + "&".join(pairs) if pairs else ""


def words(comment: str) -> list[str]:
    """The words of a comment that are ours."""
    return [word for word in comment.split() if word.startswith(PREFIX)]


def read(comment: str) -> Word | None:
    """What the job says; None if its comment has no word of ours. Raises ValueError with what was found."""
    ours = words(comment)
    if not ours:
        return None
    if len(ours) > 1:
        raise ValueError(f"the comment has {len(ours)} entries starting with {PREFIX!r}, one is accepted")
    query = ours[0].removeprefix(PREFIX)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError as error:
        raise ValueError(f"{ours[0]!r} is not of the form {PREFIX}key=value&key=value") from error
    unknown = [key for key, _ in pairs if key not in _KEYS and key not in _FORMER]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {ours[0]!r} (known: {', '.join(_KEYS)})")
    texts = [(_KEYS.get(key) or _FORMER[key], key, text) for key, text in pairs]
    if len({option.name for option, _, _ in texts}) != len(texts):
        raise ValueError(f"{ours[0]!r} names a key twice")
    values = {option.name: _canonical(option, key, text) for option, key, text in texts if text}
    return Word(values, tuple(_advice(texts)))


def _canonical(option: Option, key: str, text: str) -> str:
    try:
        return option.canonical(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _advice(texts: Iterable[tuple[Option, str, str]]) -> Iterable[str]:
    for option, key, text in texts:
        if key != option.key:
            yield f"the key {key} is now {option.key}; the former name will not be read by the next release"
        if isinstance(option.kind, Fraction) and is_former(text):
            present = option.canonical(text)
            yield f"{key}={text} is now {key}={present}; thousandths will not be read by the next release"
