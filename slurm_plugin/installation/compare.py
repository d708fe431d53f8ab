"""What is right, missing or different on a machine."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.installation import record
from slurm_plugin.installation.layout import Item


class State(enum.Enum):
    """How a file stands."""

    RIGHT = "as it should be"
    MISSING = "missing"
    OUTDATED = "of another version, unchanged since it was installed"
    CHANGED = "changed, or not put there by `sexplsched admin install`"


@dataclass(frozen=True, slots=True)
class Finding:
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
            state(item.text.encode(), record.content(record.below(root, item.path)), known.get(str(item.path))),
        )
        for item in items
    )
