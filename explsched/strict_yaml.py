"""Reads YAML into typed sections, strictly: every error names its key, what was found and what is accepted.

A file's keys are the fields of `Section` classes; a field may hold a section, or a mapping of arbitrary names to
sections.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import Meta
from msgspec.structs import FieldInfo

from explsched.errors import ExplschedError

_Section = TypeVar("_Section", bound="Section")


class ConfigError(ExplschedError):
    """The configuration cannot be used. The message has one line per fault: file, key, what is accepted."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of keys."""


def file_text(path: Path) -> str:
    """The text of a configuration file. Raises `ConfigError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def mapping(text: str, path: Path) -> dict[object, object]:
    """The keys and values of a file, none for an empty one; `path` is only used in messages.

    Raises `ConfigError` if the text is not YAML, not a mapping, or has a key twice.
    """
    try:
        data = yaml.load(text, _Loader)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark  # for unclosed constructs, where they begin
        line = f", line {mark.line + 1}" if mark else ""
        why = ": ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{path}{line}: is not YAML: {why}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values, found a {type(data).__name__}")
    return data


def top_level(text: str) -> dict[str, str]:
    """The keys of a file with plain values, as text, up to the first place that is not YAML."""
    found: dict[str, str] = {}
    key: str | None = None
    depth = 0
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth != 1 or not isinstance(event, yaml.ScalarEvent):
                key = None
            elif key is None:
                key = event.value
            else:
                found[key], key = event.value, None
    return found


def read(
    section: type[_Section], data: Mapping[object, object], faults: list[str], prefix: str = ""
) -> _Section | None:
    """The section with the valid keys of `data`; for each invalid one a line is added to `faults`.

    None if a key without a default is missing or invalid, which is then among the faults.
    """
    fields = {field.name: field for field in msgspec.structs.fields(section)}
    values: dict[str, object] = {}
    for key, value in data.items():
        where = f"{prefix}{key}"
        if not isinstance(key, str) or key not in fields:
            faults.append(f"unknown key {where!r}{accepted(str(key), fields)}")
            continue
        found = _value(fields[key].type, value, where, faults)
        if found is not _WRONG:
            values[key] = found
    needed = [name for name, field in fields.items() if field.required]
    faults += [f"{prefix}{name}: is missing" for name in needed if name not in data]
    return section(**values) if all(name in values for name in needed) else None


class Key(msgspec.Struct, frozen=True):
    """One key: its name in dots, its meaning, what is accepted, and its default as YAML writes it, or `required`."""

    name: str
    meaning: str
    accepted: str
    default: str


def keys(section: type[Section], prefix: str = "") -> Iterator[Key]:
    """Every key of a section and of its subsections; `NAME` in a key stands for an arbitrary name."""
    for field in msgspec.structs.fields(section):
        if (inside := _section(field.type)) is not None:
            yield from keys(inside, f"{prefix}{field.name}.")
        elif (inner := _named_sections(field.type)) is not None:
            yield from keys(inner, f"{prefix}{field.name}.NAME.")
        else:
            metas = [meta for meta in get_args(field.type)[1:] if isinstance(meta, Meta)]
            meaning = next((meta.description for meta in metas if meta.description), "")
            yield Key(prefix + field.name, meaning, accepted_values(field.type), _default(field))


def meanings(section: type[Section]) -> dict[str, str]:
    """The meaning of each subsection, by its key."""
    inside = ((field.name, _section(field.type)) for field in msgspec.structs.fields(section))
    return {name: inspect.cleandoc(found.__doc__ or "") for name, found in inside if found is not None}


def example(section: type[Section], head: str) -> str:
    """A file with every key, its meaning and its default, commented out, below a head."""
    about, lines, last = meanings(section), [head], ""
    for key in keys(section):
        inside, _, name = key.name.rpartition(".")
        if inside and inside != last:
            lines.append(f"\n## {about[inside]}\n#{inside}:")
        last, indent = inside, "  " if inside else ""
        lines.append(f"#{indent}# {key.meaning} ({key.accepted})\n#{indent}{name}: {key.default}")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    plain = msgspec.to_builtins(value, enc_hook=str)
    return (
        str(yaml.safe_dump(list(plain) if isinstance(plain, tuple) else plain, default_flow_style=True, width=1000))
        .removesuffix("...\n")
        .strip()
    )


def accepted(found: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, and all of them."""
    names = list(known)
    near = get_close_matches(found, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{hint} (known: {', '.join(names)})"


_NOUNS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a list of strings",
    dict: "a mapping of names to values",
    Path: "a path",
    date: "a date",
    NoneType: "null",
}


def accepted_values(kind: object) -> str:
    """The values of a type, such as `a number of seconds above 0 to 86,400`; the unit is the Meta's `extra["unit"]`."""
    if get_origin(kind) is Annotated:
        bare, *metas = get_args(kind)
        words = [_limited(accepted_values(bare), meta) for meta in metas if isinstance(meta, Meta)]
        return words[0] if words else accepted_values(bare)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(accepted_values(part) for part in get_args(kind))
    if get_origin(kind) is tuple and get_origin(item := get_args(kind)[0]) in (Annotated, Union, UnionType):
        return f"a list, each {accepted_values(item)}"
    return _NOUNS.get(get_origin(kind) or kind, str(kind))


def _limited(noun: str, meta: Meta) -> str:
    unit = (meta.extra or {}).get("unit")
    words = [noun, *([f"of {unit}"] if unit else [])]
    words += _range(("above", meta.gt), ("from", meta.ge), ("below", meta.lt), ("to", meta.le))
    lengths = _range(("from", meta.min_length), ("to", meta.max_length))
    words += [f"matching {meta.pattern}"] if meta.pattern else []
    return " ".join(words) + (f", of length {' '.join(lengths)}" if lengths else "")


def _range(*limits: tuple[str, float | None]) -> list[str]:
    return [f"{word} {limit:,}" for word, limit in limits if limit is not None]


_WRONG = object()
_NUMBER_WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d{1,3}", re.ASCII)
"""Numbers such as 1e-4, which YAML 1.1 takes for text."""


def _shown(value: object) -> str:
    """A value for messages: a key whose section is commented out has nothing."""
    return "nothing" if value is None else repr(value)


def _value(kind: object, value: object, where: str, faults: list[str]) -> object:
    if (section := _section(kind)) is not None and (value is not None or section is kind):
        if isinstance(value, Mapping):
            inside = read(section, value, faults, f"{where}.")
            return _WRONG if inside is None else inside
        faults.append(f"{where}: must be a mapping of keys to values, found {_shown(value)}")
        return _WRONG
    if (inner := _named_sections(kind)) is not None:
        if not isinstance(value, Mapping):
            faults.append(f"{where}: must be a mapping of names to their keys, found {_shown(value)}")
            return _WRONG
        return _each(kind, inner, value, where, faults)
    try:
        return _converted(kind, _finite(value))
    except msgspec.ValidationError:
        if isinstance(value, str) and _NUMBER_WITH_EXPONENT.fullmatch(value):  # text is not accepted here
            number = float(value)
            return _value(kind, int(number) if number.is_integer() else number, where, faults)
        faults.append(f"{where}: must be {accepted_values(kind)}, found {_shown(value)}")
        return _WRONG


def _each(
    kind: object, inner: type[Section], data: Mapping[object, object], where: str, faults: list[str]
) -> dict[str, Section]:
    """The sections of a mapping of names; a name must match the mapping's annotation."""
    name_kind = get_args(_bare(kind))[0]
    sections: dict[str, Section] = {}
    for name, value in data.items():
        try:
            key = str(_converted(name_kind, name))
        except msgspec.ValidationError:
            faults.append(f"{where}: name {name!r}: must be {accepted_values(name_kind)}")
            continue
        found = _value(inner, value, f"{where}.{key}", faults)
        if isinstance(found, Section):
            sections[key] = found
    return sections


def _bare(kind: object) -> object:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _section(kind: object) -> type[Section] | None:
    """The section type of a field that holds a section, or a section or null; None for any other field."""
    candidates = [member for member in get_args(kind) if member is not NoneType] if _is_union(kind) else [kind]
    if len(candidates) == 1 and isinstance(candidates[0], type) and issubclass(candidates[0], Section):
        return candidates[0]
    return None


def _is_union(kind: object) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _named_sections(kind: object) -> type[Section] | None:
    """The section type of a field that maps names to sections; None for any other field."""
    bare = _bare(kind)
    if get_origin(bare) is not dict:
        return None
    return _section(get_args(bare)[1])


def _converted(kind: object, value: object) -> object:
    """The value as a type. In a pattern `$` would accept a line break at the end."""
    found = msgspec.convert(value, kind, dec_hook=_path)
    several = isinstance(found, tuple)
    metas = get_args(get_args(_bare(kind))[0] if several else kind)[1:]
    is_ended = any(isinstance(meta, Meta) and (meta.pattern or "").endswith("$") for meta in metas)
    if is_ended and any(isinstance(text, str) and text.endswith("\n") for text in (found if several else (found,))):
        raise msgspec.ValidationError("Expected no line break at the end")
    return found


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise msgspec.ValidationError("Expected a finite number")
    return value


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and "\0" not in value:
        return Path(value)
    raise msgspec.ValidationError("Expected `str`")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # one of two classes
    """Enforces YAML's rule that a key occurs once; PyYAML would silently take the second value.

    `10:00` is text, as in YAML 1.2: users mean a time limit of Slurm's, and YAML 1.1 makes the number 600 of it.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:  # noqa: FBT001, FBT002  PyYAML's
        """As PyYAML does, but what it cannot convert, such as `2026-02-30` or `0x_`, is an error with its line."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r:.80} is not a value of {node.tag}", node.start_mark
            ) from error


def _unique(loader: _Loader, node: yaml.MappingNode) -> dict[object, object]:
    seen: set[object] = set()
    for key_node, _value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if key_node.value in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key_node.value!r} occurs twice", key_node.start_mark
            )
        seen.add(key_node.value)
    loader.flatten_mapping(node)
    found: dict[object, object] = loader.construct_mapping(node, deep=True)
    return found


_TIME = (yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, re.compile(r"\d[\d_]*(:[0-5]?\d)+$", re.ASCII))
_Loader.yaml_implicit_resolvers = {  # the first that matches counts
    first: [_TIME, *resolvers] for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique)
