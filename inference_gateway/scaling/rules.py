"""The scaling rules by name, their options, and a service's bounds, which apply to every rule.

Rules are entries of the entry-point group `explsched.scaling_rules`, each a `RuleKind`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from explsched import entry_points
from inference_gateway.errors import GatewayError
from inference_gateway.model import Capacity, Decision, Observation, ScaleRule


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A scaling rule that a service can name."""

    name: str
    summary: str
    options: type[Options]
    make: Callable[[Any, Capacity], ScaleRule]

    def described(self) -> str:
        """The options with their defaults, as `name=value`."""
        return " ".join(f"{field.name}={field.default}" for field in msgspec.structs.fields(self.options))


Share = Annotated[float, Meta(gt=0, le=2)]
"""Fraction of a replica's capacity that a rule plans to use; above 1 it plans for queued requests."""

Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Window = Annotated[int, Meta(ge=1, le=3_600)]
"""A window, in one-second bins."""

Factor = Annotated[float, Meta(gt=0, le=1_000)]


class ScalingError(GatewayError):
    """A rule or one of its options is unknown, or an option's value is not accepted."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of every rule's options."""


O = TypeVar("O", bound=Options)  # noqa: E741


def parse_options(rule: str, kind: type[O], given: Mapping[str, object]) -> O:
    """The options of a rule. Values may be strings, as on a command line. Raises `ScalingError`."""
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (nearest: {near[0]})" if near else ""
            raise ScalingError(f"rule {rule}: unknown option {name!r}{hint}, accepted are {', '.join(known)}")
        try:
            one = msgspec.convert(value, known[name], strict=False)
        except msgspec.ValidationError as error:
            raise ScalingError(f"rule {rule}: option {name}: found {value!r}: {error}") from error
        if isinstance(one, float) and not math.isfinite(one):
            raise ScalingError(f"rule {rule}: option {name}: found {value!r}, accepted are finite numbers")
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        raise ScalingError(f"rule {rule}: {error}") from error


DEFAULT = "slurm"

_GROUP = entry_points.SCALING_RULES


@cache
def rules() -> Mapping[str, RuleKind]:
    """The rules of this distribution, the default first. Each has an option `utilization` (see `Share`)."""
    return {name: entry.load() for name, entry in entry_points.own(_GROUP).items()}


def kind_of(name: str) -> RuleKind:
    """The rule of this name, of this distribution or of another package. Raises `ScalingError`."""
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
    """A new rule without history. Raises `ScalingError` for an unknown name or a wrong option."""
    kind = kind_of(name)
    return kind.make(parse_options(name, kind.options, given), capacity)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and largest number of replicas (ready + starting), and how many may be starting at once."""

    minimum: int = 1
    maximum: int = 8
    max_pending: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ScalingError(f"min {self.minimum}, max {self.maximum}: accepted are 0 <= min <= max")
        if self.maximum < 1 or self.max_pending < 1:
            raise ScalingError(f"max {self.maximum}, max_pending {self.max_pending}: accepted are whole numbers from 1")


def bounded(wanted: Decision, seen: Observation, bounds: Bounds) -> Decision:
    """The decision, clipped to the bounds; its reason names the bound that applied.

    `max_pending` limits new starts only: replicas that are starting are not cancelled for it. Where it keeps a
    service below its minimum, the minimum is reached in several steps.
    """
    replicas = min(max(wanted.replicas, bounds.minimum), bounds.maximum)
    present = seen.ready + seen.starting
    startable = max(seen.ready + bounds.max_pending, present)
    if replicas > startable:
        return Decision(startable, f"{wanted.reason}; max_pending {bounds.max_pending} keeps it at {startable}")
    if replicas == wanted.replicas:
        return wanted
    bound = f"min {bounds.minimum}" if replicas > wanted.replicas else f"max {bounds.maximum}"
    return Decision(replicas, f"{wanted.reason}; {bound} keeps it at {replicas}")


@dataclass(slots=True)
class BoundedRule:
    """A rule that clips another rule's decisions to a service's bounds."""

    rule: ScaleRule
    bounds: Bounds

    @property
    def name(self) -> str:
        """The name of the inner rule."""
        return self.rule.name

    def decide(self, seen: Observation) -> Decision:
        """The inner rule's decision within the bounds."""
        return bounded(self.rule.decide(seen), seen, self.bounds)

    def calibrate(self, capacity: Capacity) -> None:
        """Pass the capacity to the inner rule."""
        self.rule.calibrate(capacity)
