"""What packages register with explsched: commands, policies and scaling rules, by entry-point group.

Everything that is found by a name that a person typed goes through here. An entry is imported only when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata

DISTRIBUTION = "explsched"

COMMANDS = "explsched.commands"
GATEWAY_COMMANDS = "explsched.gateway_commands"
POLICIES = "explsched.policies"
SCALING_RULES = "explsched.scaling_rules"


@cache
def own(group: str) -> Mapping[str, metadata.EntryPoint]:
    """Entries of the distribution explsched by name, in the order in which pyproject.toml lists them.

    Reads one file, so that finding a command of ours costs nothing worth mentioning.
    """
    return {entry.name: entry for entry in metadata.distribution(DISTRIBUTION).entry_points.select(group=group)}


@cache
def others(group: str) -> Mapping[str, metadata.EntryPoint]:
    """Entries of other installed distributions by name, sorted; none that has the name of one of ours.

    Of two distributions that register the same name, the first in alphabetical order of its target counts.
    """
    found = sorted(metadata.entry_points(group=group), key=lambda entry: (entry.name, entry.value), reverse=True)
    return dict(sorted((entry.name, entry) for entry in found if entry.name not in own(group)))
