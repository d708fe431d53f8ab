"""What placements of instances that share GPUs have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from simulation.colocation.placements.gpu_loads import GpuLoads
from simulation.colocation.placements.instance import GpuShare, Hosted, Instance


class ShareBounds(Struct, frozen=True):
    """How far a GPU may be filled: the sums of requests (omega) and of limits (gamma), as shares of the GPU."""

    request: float = 1.0
    limit: float = 1.5


class SharePlace(Protocol):
    """Chooses GPUs for instances that take fractions of them.

    `bounds` is what the placement promises about the declared requests and limits of the instances on each GPU. It is
    not about what the placement charges, which may be less than is declared.
    """

    @property
    def bounds(self) -> ShareBounds:
        """The sums of declared requests and limits that no GPU exceeds."""
        ...

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        """The GPUs for an instance and what it is charged there; None if it does not fit. Changes nothing."""
        ...


def place_in_order(
    place: SharePlace, loads: GpuLoads, pending: Iterable[tuple[int, Instance]]
) -> tuple[tuple[Hosted, ...], tuple[int, ...]]:
    """Place waiting instances, given as (key, instance) in order of arrival; `loads` stays as it is.

    Returns what starts, in the same order, and the keys of those that do not fit. Raises `PolicyError` if a key is in
    use already.
    """
    trial = loads.copy()
    started: list[Hosted] = []
    waiting: list[int] = []
    for key, instance in pending:
        shares = place.choose(instance, trial)
        if shares is None:
            waiting.append(key)
            continue
        hosted = Hosted(key, instance, shares)
        trial.add(hosted)
        started.append(hosted)
    return tuple(started), tuple(waiting)
