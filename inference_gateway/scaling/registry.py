"""The scaling rules by name, and building one from what a person wrote.

Rules are entries of the entry-point group `explsched.scaling_rules`, each a `rule_kind.RuleKind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache

from explsched import entry_points
from inference_gateway.model import Capacity, ScaleRule
from inference_gateway.scaling.options import ScalingError, parse_options
from inference_gateway.scaling.rule_kind import RuleKind

DEFAULT = "slurm"

_GROUP = entry_points.SCALING_RULES


@cache
def rules() -> Mapping[str, RuleKind]:
    """The rules of this distribution, the default first. Each has an option `utilization`: what it plans to use."""
    return {name: entry.load() for name, entry in entry_points.own(_GROUP).items()}


def kind_of(name: str) -> RuleKind:
    """The rule of this name, ours or another package's. Raises `ScalingError`."""
    if name in rules():
        return rules()[name]
    others = entry_points.others(_GROUP)
    if entry := others.get(name):
        try:
            kind = entry.load()
        except Exception as error:  # another package's import may raise anything
            raise ScalingError(f"scaling rule {name!r} ({entry.value}) does not load: {error!r}") from error
        if not isinstance(kind, RuleKind):
            raise ScalingError(f"scaling rule {name!r}: {entry.value} is {kind!r}, expected a RuleKind")
        return kind
    known = (*rules(), *others)
    near = get_close_matches(name, known, n=1)
    hint = f" (nearest: {near[0]})" if near else ""
    raise ScalingError(f"unknown scaling rule {name!r}{hint}, accepted are {', '.join(known)}")


def build(name: str, given: Mapping[str, object], capacity: Capacity) -> ScaleRule:
    """A new rule with its memory empty. Raises `ScalingError` for an unknown name or a wrong option."""
    kind = kind_of(name)
    return kind.make(parse_options(name, kind.options, given), capacity)
