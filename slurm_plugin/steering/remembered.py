"""What a daemon keeps in mind between passes, and the next look at the cluster takes into account."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class Remembered(Struct, frozen=True):
    """Nothing of it is needed: a daemon that has just started, or a command, looks without.

    Attributes:
        yielding: jobs that have been asked to make room.
        served_s: jobs for which others have been requeued, and when last.
        leased_in_vain: waiting jobs whose leases have kept nodes for long enough.

    """

    yielding: frozenset[int] = frozenset()
    served_s: Mapping[int, float] = field(default_factory=dict)
    leased_in_vain: frozenset[int] = frozenset()
