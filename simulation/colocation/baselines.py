"""The placements that Dilu is compared with, and all placements by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import numpy as np
from msgspec import Struct

from explsched.errors import PolicyError
from simulation.colocation.dilu import Complementary, DiluOriginal
from simulation.colocation.instance import GpuLoads, Instance, InstanceShare
from simulation.colocation.placement import ShareBounds, SharePlace, as_declared


class Exclusive(Struct, frozen=True):
    """Every instance has its GPUs to itself; all of them on the first node that has enough idle ones."""

    bounds: ShareBounds = ShareBounds(1.0, 1.0)

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """Idle GPUs for an instance, None if no node has enough of them."""
        idle = loads.usable & ~loads.active & (loads.capacity_mib >= max(instance.memory_mib))
        per_node = np.bincount(loads.node[idle], minlength=len(loads.nodes))
        enough = np.flatnonzero(per_node >= instance.gpus)
        if not enough.size:
            return None
        return as_declared(instance, np.flatnonzero(idle & (loads.node == enough[0]))[: instance.gpus])


class InflessByLimit(Struct, frozen=True):
    """INFless-l: an instance is given its limit as a fixed quota, so nothing is shared that anybody may need."""

    rule: DiluOriginal = DiluOriginal()
    bounds: ShareBounds = ShareBounds(1.0, 1.0)

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """The GPUs the rule chooses for an instance whose request is its limit."""
        return self.rule.choose(instance.with_shares(instance.limit, instance.limit), loads)


class InflessByRequest(Struct, frozen=True):
    """INFless-r: an instance is given its request as a fixed quota; its limit is not kept."""

    rule: DiluOriginal = DiluOriginal()
    bounds: ShareBounds = ShareBounds(1.0, float("inf"))

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """The GPUs the rule chooses for an instance whose limit is its request."""
        return self.rule.choose(instance.with_shares(instance.request, instance.request), loads)


SHARE_PLACEMENTS: Mapping[str, SharePlace] = {
    "exclusive": Exclusive(),
    "dilu": Complementary(),
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
