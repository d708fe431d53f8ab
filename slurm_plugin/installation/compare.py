"""What is right, missing or different on a machine."""

from __future__ import annotations

import enum
import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from slurm_plugin.installation import record
from slurm_plugin.installation.layout import Item


class State(enum.Enum):
    """How a file stands."""

    RIGHT = "as it should be"
    MISSING = "missing"
    OUTDATED = "of another version, unchanged since it was installed"
    CHANGED = "changed, or not put there by `sexplsched admin install`"


class Finding(Struct, frozen=True):
    """A file and how it stands."""

    item: Item
    state: State

    @property
    def is_fault(self) -> bool:
        """Whether `admin install` has work here, or an admin a decision to make."""
        return self.state is not State.RIGHT and not (self.item.is_site_owned and self.state is State.CHANGED)


def state(wanted: bytes, found: bytes | None, recorded: str | None) -> State:
    """How a file stands that should hold `wanted`; `recorded` is the digest of what was once written there."""
    if found is None:
        return State.MISSING
    if found == wanted:
        return State.RIGHT
    return State.OUTDATED if record.digest(found) == recorded else State.CHANGED


def findings(items: Iterable[Item], root: Path) -> tuple[Finding, ...]:
    """Look at every file. Raises `InstallationError`."""
    known = record.read(root).files
    return tuple(
        Finding(
            item,
            state(item.text.encode(), _found(record.below(root, item.path)), known.get(str(item.path))),
        )
        for item in items
    )


def _found(path: Path) -> bytes | None:
    """What a file holds, also if a package has it compressed, as man pages usually are."""
    plain = record.content(path)
    compressed = path.with_name(path.name + ".gz")
    packed = record.content(compressed) if plain is None else None
    try:
        return plain if packed is None else gzip.decompress(packed)
    except (EOFError, OSError, zlib.error) as error:
        raise record.InstallationError(f"{compressed}: cannot be read: {error}") from error
