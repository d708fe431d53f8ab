"""Turns what a person wrote about a rule into the rule's options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from inference_gateway.errors import GatewayError

Share = Annotated[float, Meta(gt=0, le=2)]
"""Part of a replica's capacity that a rule plans to use; above 1 it plans with waiting requests."""

Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Window = Annotated[int, Meta(ge=1, le=3_600)]
"""A number of one-second bins."""

Factor = Annotated[float, Meta(gt=0, le=1_000)]


class ScalingError(GatewayError):
    """A rule or an option of one is unknown or has a value that makes no sense."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of every rule's options."""


O = TypeVar("O", bound=Options)  # noqa: E741


def parse_options(rule: str, kind: type[O], given: Mapping[str, object]) -> O:
    """The options of a rule. Values may be texts, as a command line has them. Raises `ScalingError`."""
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
