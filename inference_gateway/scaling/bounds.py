"""The bounds of a service, applied to every rule's decision in this one place."""

from __future__ import annotations

from dataclasses import dataclass

from inference_gateway.model import Capacity, Decision, Observation, ScaleRule
from inference_gateway.scaling.options import ScalingError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Replicas of a service (ready + starting): at least and at most, and how many may be starting at once."""

    minimum: int = 1
    maximum: int = 8
    max_pending: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ScalingError(f"min {self.minimum}, max {self.maximum}: accepted are 0 <= min <= max")
        if self.maximum < 1 or self.max_pending < 1:
            raise ScalingError(f"max {self.maximum}, max_pending {self.max_pending}: accepted are whole numbers from 1")


def bounded(wanted: Decision, seen: Observation, bounds: Bounds) -> Decision:
    """The decision within the bounds; its reason says which bound held it back.

    `max_pending` limits new starts only: what is starting already is not cancelled for it, and where it keeps a
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
    """A rule within bounds: itself a rule."""

    rule: ScaleRule
    bounds: Bounds

    @property
    def name(self) -> str:
        """That of the rule."""
        return self.rule.name

    def decide(self, seen: Observation) -> Decision:
        """What the rule wants, within the bounds."""
        return bounded(self.rule.decide(seen), seen, self.bounds)

    def calibrate(self, capacity: Capacity) -> None:
        """Pass it on."""
        self.rule.calibrate(capacity)
