"""The scaling rules by name, and building one from what a person wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from inference_gateway.model import Capacity, ScaleRule
from inference_gateway.scaling.dilu import Dilu, DiluOptions
from inference_gateway.scaling.knative import Knative, KnativeOptions
from inference_gateway.scaling.options import Options, ScalingError, parse_options
from inference_gateway.scaling.slurm import Slurm, SlurmOptions
from inference_gateway.scaling.target import Target, TargetOptions

DEFAULT = "slurm"


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A rule that services may name."""

    name: str
    summary: str
    options: type[Options]
    make: Callable[[Any, Capacity], ScaleRule]

    def described(self) -> str:
        """The options with their defaults, as a person would write them."""
        return " ".join(f"{field.name}={field.default}" for field in msgspec.structs.fields(self.options))


_KINDS = (
    RuleKind("slurm", "forecast over the start time, lazy in; for replicas that start in minutes", SlurmOptions, Slurm),
    RuleKind("dilu", "k of the last n one-second arrival counts, one replica at a time", DiluOptions, Dilu),
    RuleKind("knative", "stable and panic window of requests in flight", KnativeOptions, Knative),
    RuleKind("target", "requests in flight and queued per replica, with delays", TargetOptions, Target),
)
RULES: Mapping[str, RuleKind] = {kind.name: kind for kind in _KINDS}
"""All rules, the default first. Every rule has an option `utilization`: what it plans to use of a replica."""


def kind_of(name: str) -> RuleKind:
    """The rule of this name. Raises `ScalingError`."""
    if name not in RULES:
        near = get_close_matches(name, RULES, n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise ScalingError(f"unknown scaling rule {name!r}{hint}, accepted are {', '.join(RULES)}")
    return RULES[name]


def build(name: str, given: Mapping[str, object], capacity: Capacity) -> ScaleRule:
    """A new rule with its memory empty. Raises `ScalingError` for an unknown name or a wrong option."""
    kind = kind_of(name)
    return kind.make(parse_options(name, kind.options, given), capacity)
