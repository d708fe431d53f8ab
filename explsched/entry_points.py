"""Entry points: commands, policies, sweep strategies and scaling rules that packages register with explsched.

Everything that a user selects by name is found here. An entry is imported only when it is used.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from explsched.errors import ExplschedError

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

    Reads the file directly, because every command waits for it, and importlib.metadata would load packages for e-mail,
    archives and tables.
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
        # This user may not read the directory, as Python's home may be root's; imports skip it as well.
        if not os.access(directory or ".", os.R_OK | os.X_OK):
            continue
        for path in Path(directory).glob(f"{DISTRIBUTION}-*.dist-info/entry_points.txt"):
            return path
    raise RuntimeError(f"the distribution {DISTRIBUTION} is not installed: nothing is registered (pip install -e .)")


@cache
def others(group: str) -> Mapping[str, EntryPoint]:
    """Entries of other installed distributions by name, sorted, without names that we register.

    If two distributions register the same name, the first by the alphabetical order of its target counts.
    """
    from importlib import metadata

    found = sorted(metadata.entry_points(group=group), key=lambda entry: (entry.name, entry.value), reverse=True)
    return dict(sorted((entry.name, entry) for entry in found if entry.name not in own(group)))


class Foreign(NamedTuple):
    """An entry of another package; `fault` says why it cannot be used, None if it loads."""

    what: str
    name: str
    package: str
    fault: str | None


class Registry(NamedTuple):
    """The entries of one group. Each is a callable that makes an object, such as a policy.

    Attributes:
        group: the entry-point group.
        what: the kind of object, for messages.
        parts: attributes that the object must have.
        error: raised for an unknown name, or for an entry of another package that cannot be used.

    """

    group: str
    what: str
    parts: tuple[str, ...]
    error: type[ExplschedError]

    def names(self) -> tuple[str, ...]:
        """The names that can be built: ours first, then those of other packages that load."""
        return (*own(self.group), *(name for name, entry in others(self.group).items() if _fault(entry) is None))

    def knows(self, name: str) -> bool:
        """Whether the name is registered. Reads other packages only if it is not ours."""
        return name in own(self.group) or name in self.names()

    def foreign(self) -> tuple[Foreign, ...]:
        """The entries of other packages, including those that do not load."""
        entries = others(self.group).values()
        return tuple(Foreign(self.what, entry.name, _package(entry), _fault(entry)) for entry in entries)

    def build(self, name: str, *arguments: object) -> Any:  # noqa: ANN401  the caller knows what the group makes
        """Call the entry of that name with the arguments. Raises `error`."""
        self.check(name)
        if entry := own(self.group).get(name):
            return entry.load()(*arguments)
        return self._built(others(self.group)[name], arguments)

    def check(self, name: str) -> None:
        """Raise `error` if the name is unknown or its entry does not load. Does not load our own entries."""
        if name in own(self.group):
            return
        other = others(self.group).get(name)
        if other is None:
            raise self._unknown(name)
        if reason := _fault(other):
            raise self.error(f"{self._described(other)} does not load: {reason}")

    def _unknown(self, name: str) -> ExplschedError:
        from difflib import get_close_matches

        known = self.names()
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return self.error(f"unknown {self.what} {name!r}{hint} (known: {', '.join(known)})")

    def _described(self, entry: EntryPoint) -> str:
        return f"{self.what} {entry.name!r} of package {_package(entry)!r}"

    def _built(self, entry: EntryPoint, arguments: tuple[object, ...]) -> object:
        try:
            made: Any = entry.load()(*arguments)
        except Exception as error:  # another package's code may raise anything
            raise self.error(f"{self._described(entry)} cannot be built: {error!r}") from error
        missing = [part for part in self.parts if not hasattr(made, part)]
        if missing:
            raise self.error(f"{self._described(entry)} lacks {', '.join(missing)}")
        if "name" in self.parts and made.name != entry.name:
            raise self.error(f"{self._described(entry)} calls itself {made.name!r}: both names must be the same")
        return made


@cache
def _fault(entry: EntryPoint) -> str | None:
    try:
        make = entry.load()
    except Exception as error:  # likewise
        return f"{entry.value}: {type(error).__name__}: {error}"
    return None if callable(make) else f"{entry.value}: is not callable"


def _package(entry: EntryPoint) -> str:
    """The name of the distribution that registers an entry; its target if that is unknown."""
    return entry.dist.name if entry.dist else entry.value
