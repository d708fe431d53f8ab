"""All placements of instances, by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from explsched.errors import PolicyError
from simulation.colocation.dilu import Complementary, DiluOriginal, Exclusive, InflessByLimit, InflessByRequest
from simulation.colocation.instance import SharePlace
from simulation.colocation.moves import ComplementaryMoves

SHARE_PLACEMENTS: Mapping[str, SharePlace] = {
    "exclusive": Exclusive(),
    "dilu": Complementary(),
    "dilu-moves": ComplementaryMoves(),
    "dilu-original": DiluOriginal(),
    "infless-l": InflessByLimit(),
    "infless-r": InflessByRequest(),
}
"""Placements of instances that share GPUs, by the name people call them."""


def share_placement(name: str) -> SharePlace:
    """The placement of that name. Raises `PolicyError`, naming the nearest known one, if there is none."""
    if name not in SHARE_PLACEMENTS:
        near = get_close_matches(name, SHARE_PLACEMENTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PolicyError(f"unknown placement {name!r}{hint} (known: {', '.join(SHARE_PLACEMENTS)})")
    return SHARE_PLACEMENTS[name]
