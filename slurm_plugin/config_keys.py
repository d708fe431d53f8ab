"""The keys of explsched.yaml, read from the configuration model: for `config keys`, the man page and the example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import yaml
from msgspec import Meta, Struct

from explsched.accepted_values import accepted_values
from slurm_plugin.config import Config, plain

_HEAD = """\
## explsched.yaml: what sexplschedd(8) reads. Every key is optional and stands here with its default, commented out:
## take away one # of a line to set it (and of the section above it). explsched.yaml(5) explains the keys,
## `sexplsched config check` checks this file, `systemctl reload sexplschedd` puts it in force.
"""


class Key(Struct, frozen=True):
    """One key: its name in dots, its meaning, what is accepted, and its default as YAML writes it."""

    name: str
    meaning: str
    accepted: str
    default: str


def all_keys() -> Iterator[Key]:
    """Every key, in the order of the model."""
    yield from _keys(Config, "", plain(Config()))


def section_meanings() -> dict[str, str]:
    """What each section is about, by its name."""
    fields = msgspec.structs.fields(Config)
    return {field.name: (field.type.__doc__ or "").strip() for field in fields if _is_section(field.type)}


def example() -> str:
    """A configuration file with every key, its meaning and its default, commented out."""
    meanings, lines, last = section_meanings(), [_HEAD], ""
    for key in all_keys():
        section, _, name = key.name.rpartition(".")
        if section and section != last:
            lines.append(f"\n## {meanings[section]}\n#{section}:")
        last, indent = section, "  " if section else ""
        lines.append(f"#{indent}# {key.meaning} ({key.accepted})\n#{indent}{name}: {key.default}")
    return "\n".join(lines) + "\n"


def _keys(section: type[msgspec.Struct], prefix: str, defaults: dict[str, Any]) -> Iterator[Key]:
    for field in msgspec.structs.fields(section):
        if _is_section(field.type):
            yield from _keys(field.type, f"{prefix}{field.name}.", defaults[field.name])
        else:
            (meta,) = (meta for meta in get_args(field.type)[1:] if isinstance(meta, Meta))
            default = yaml.safe_dump(defaults[field.name], default_flow_style=True).removesuffix("...\n").strip()
            yield Key(prefix + field.name, meta.description or "", accepted_values(field.type), default)


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
