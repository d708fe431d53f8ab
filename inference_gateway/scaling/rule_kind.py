"""What a package registers as a scaling rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from inference_gateway.model import Capacity, ScaleRule
from inference_gateway.scaling.options import Options


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
