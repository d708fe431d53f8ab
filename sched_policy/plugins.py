"""Policies from other packages: the entry-point group `explsched.policies`.

An entry names a callable that takes `catalog.PolicyOptions` and returns a `policy.SchedulingPolicy`; the entry's name
is the policy's. A package that fails to load harms nobody but those who ask for its policy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct

GROUP = "explsched.policies"


class Plugin(Struct, frozen=True):
    """A policy that another package offers; `fault` says why it cannot be used, None if it can."""

    name: str
    package: str
    make: Callable[[Any], Any] | None
    fault: str | None = None


@cache
def found() -> tuple[Plugin, ...]:
    """All plugins that are installed, in order of their names."""
    from importlib.metadata import entry_points  # needed only by who asks for a policy that is not ours

    entries = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    plugins = []
    for entry in entries:
        package = entry.dist.name if entry.dist else entry.value
        try:
            make = entry.load()
        except Exception as error:
            plugins.append(Plugin(entry.name, package, None, f"{entry.value}: {type(error).__name__}: {error}"))
            continue
        fault = None if callable(make) else f"{entry.value}: is no callable"
        plugins.append(Plugin(entry.name, package, make if callable(make) else None, fault))
    return tuple(plugins)
