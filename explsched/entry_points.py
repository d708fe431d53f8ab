"""What packages register with explsched: commands, policies, sweep strategies and scaling rules, by entry-point group.

Everything that is found by a name that a person typed goes through here. An entry is imported only when asked for.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DISTRIBUTION = "explsched"

COMMANDS = "explsched.commands"
GATEWAY_COMMANDS = "explsched.gateway_commands"
POLICIES = "explsched.policies"
OBJECTIVES = "explsched.objectives"
SWEEP_STRATEGIES = "explsched.sweep_strategies"
SCALING_RULES = "explsched.scaling_rules"


class OwnEntry(NamedTuple):
    """An entry of the distribution explsched: its name and `module:attribute`."""

    name: str
    value: str

    def load(self) -> Any:  # noqa: ANN401  as importlib.metadata has it
        """The object, imported now."""
        return pkgutil.resolve_name(self.value)


@cache
def own(group: str) -> Mapping[str, OwnEntry]:
    """Entries of the distribution explsched by name, in the order in which pyproject.toml lists them.

    Reads the one file by itself: every command waits for it, and importlib.metadata loads packages for e-mail, archives
    and tables to do it.
    """
    section, found = "", {}
    for line in _own_file().read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition(" = ")
        if line.startswith("["):
            section = line.strip("[]")
        elif equals and section == group:
            found[name] = OwnEntry(name, value)
    return found


def _own_file() -> Path:
    for directory in sys.path:
        for path in Path(directory).glob(f"{DISTRIBUTION}-*.dist-info/entry_points.txt"):
            return path
    raise RuntimeError(f"the distribution {DISTRIBUTION} is not installed: nothing is registered (pip install -e .)")


@cache
def others(group: str) -> Mapping[str, EntryPoint]:
    """Entries of other installed distributions by name, sorted; none that has the name of one of ours.

    Of two distributions that register the same name, the first in alphabetical order of its target counts.
    """
    from importlib import metadata

    found = sorted(metadata.entry_points(group=group), key=lambda entry: (entry.name, entry.value), reverse=True)
    return dict(sorted((entry.name, entry) for entry in found if entry.name not in own(group)))
