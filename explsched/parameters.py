"""Hyper-parameters of a training: their names and values, and how command lines and comments spell them.

A value is a number, true or false, or text. Numbers are floats everywhere, so that 16 on a command line and 16.0 in a
report are the same value. Standard library only: trainings import it.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from explsched.launchers import told_to_training

Parameter = float | str | bool

LONGEST = 128
"""Characters of a name, and of a value that is text; what is longer is cut off."""

_NAME = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_PAIR = re.compile(r"--([A-Za-z_][\w./-]*)(?:=(.*))?", re.ASCII | re.DOTALL)
_SIMPLE = re.compile(r"[A-Za-z][\w+-]*", re.ASCII)
_SECRET = re.compile(r"pass(word|wd|phrase)|secret|credential|api[-_]?key", re.IGNORECASE)
_TOKEN = re.compile(r"token(?!i[sz])", re.IGNORECASE)
_ONE_TOKEN = re.compile(r"token(?!i[sz]|s)", re.IGNORECASE)
_WORDS = {"true": True, "false": False}


def of_text(text: str) -> Parameter:
    """The value that a person typed."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        number = float(text)
    except ValueError:
        return _cut(text)
    return number if math.isfinite(number) else _cut(text)


def of_value(value: object) -> Parameter:
    """The value of a program's variable: anything that is no finite number and no truth value becomes text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _cut(value)
    number = _number(value)
    if number is None:
        return _cut(str(value))
    return number if math.isfinite(number) else str(number)


def _number(value: object) -> float | None:
    """The number that a value is, also one of NumPy or a tensor with one element; None if it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor without data, as on `meta`
        return None


def _cut(text: str) -> str:
    """As long as is accepted. Bytes that are no UTF-8, as in names of files, would make a line of JSON unreadable."""
    return text[:LONGEST].encode(errors="replace").decode()


def of_command(words: Sequence[str]) -> dict[str, Parameter]:
    """What the `--key=value` and `--key value` words of a command line say; the last of several counts.

    A value in a word of its own is a number or a plain word: any other may be a script or a file behind a switch
    (`--verbose train.py`). Secrets are left out, and what a launcher is told before the script that it starts: ports
    and ids differ in each job and are nothing of the training.
    """
    found: dict[str, Parameter] = {}
    words = told_to_training(words)
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        match = _PAIR.fullmatch(word)
        value = match and (match[2] if match[2] is not None else _own_word(after))
        if match and value is not None and is_name(match[1]) and not is_secret(match[1], value):
            found[match[1]] = of_text(value)
    return found


def is_secret(name: str, value: object) -> bool:
    """Whether a value may be one, by its name; or may have one in it, by the names in its text, as that of a mapping.

    What a program has as a number or truth value is no token, as in `pad_token_id=0`. Digits that a person typed may be
    one, but for numbers of tokens, as in `--max_tokens=4096`. In a text `tokens` are mostly those of a model, as in
    `["embed_tokens"]`.
    """
    found = _SECRET.search(name)
    if isinstance(value, str | bytes | os.PathLike):
        token = _ONE_TOKEN if isinstance(of_text(str(value)), float) else _TOKEN
        found = found or token.search(name)
    elif _number(value) is None:
        text = str(value)
        found = found or _TOKEN.search(name) or _SECRET.search(text) or _ONE_TOKEN.search(text)
    return found is not None


def _own_word(word: str) -> str | None:
    is_value = isinstance(of_text(word), float) or _SIMPLE.fullmatch(word)
    return word if is_value else None


def is_plain(value: Parameter) -> bool:
    """Whether the value is a number, a truth value or a plain word, and no path, list or sentence."""
    return not isinstance(value, str) or _SIMPLE.fullmatch(value) is not None


def of_pairs(text: str) -> dict[str, Parameter]:
    """The parameters of `K=V,K=V`; the last of a name counts. Raises ValueError for text of another form."""
    found: dict[str, Parameter] = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals or not is_name(name):
            raise ValueError(text)
        found[name] = of_text(value)
    return found


def is_name(text: str) -> bool:
    """Whether a parameter can have that name."""
    return len(text) <= LONGEST and _NAME.fullmatch(text) is not None


def shown(value: Parameter) -> str:
    """The value as a person would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:.10g}"


def listed(parameters: Mapping[str, Parameter] | Iterable[tuple[str, Parameter]]) -> str:
    """`K=V,K=V`, for tables and sentences."""
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    return ",".join(f"{name}={shown(value)}" for name, value in pairs)
