"""What a key of a configuration takes, in words: for messages, the manual and the example configuration."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin

from msgspec import Meta

_NOUNS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    tuple: "a list of words",
    dict: "a mapping of names to values",
    Path: "a path",
    types.NoneType: "null",
}


def accepted_values(kind: object) -> str:
    """The values of a type, such as `a number of seconds above 0 to 86,400`; the unit is the Meta's `extra["unit"]`."""
    if get_origin(kind) is Annotated:
        bare, *metas = get_args(kind)
        words = [_limited(accepted_values(bare), meta) for meta in metas if isinstance(meta, Meta)]
        return words[0] if words else accepted_values(bare)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(accepted_values(part) for part in get_args(kind))
    if get_origin(kind) is tuple and get_origin(item := get_args(kind)[0]) is Annotated:
        return f"a list, each {accepted_values(item)}"
    return _NOUNS.get(get_origin(kind) or kind, str(kind))


def _limited(noun: str, meta: Meta) -> str:
    unit = (meta.extra or {}).get("unit")
    words = [noun, *([f"of {unit}"] if unit else [])]
    words += _range(("above", meta.gt), ("from", meta.ge), ("below", meta.lt), ("to", meta.le))
    lengths = _range(("from", meta.min_length), ("to", meta.max_length))
    words += [f"of the form {meta.pattern}"] if meta.pattern else []
    return " ".join(words) + (f", of length {' '.join(lengths)}" if lengths else "")


def _range(*limits: tuple[str, float | None]) -> list[str]:
    return [f"{word} {limit:,}" for word, limit in limits if limit is not None]
