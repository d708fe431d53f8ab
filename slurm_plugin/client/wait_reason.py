"""Why a job waits, from the words in which Slurm's releases say it. Pure."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class WaitReason(Enum):
    """What keeps a job waiting: the first whose words, a regular expression, Slurm's reason is."""

    RESOURCES = "Resources"  # it is the first in its partition, and waits for room
    PRIORITY = "Priority"  # it waits for room behind others
    TIER = "Nodes required for job are .*"  # one of the two, where partitions have tiers or nodes are down
    UNTESTED = "(None)?"  # Slurm has not tested it since it was submitted or changed
    RESERVED = "ReqNodeNotAvail, (Reserved for maintenance|May be reserved for other job).*"  # leases are among these
    NODES = "ReqNodeNotAvail, UnavailableNodes:.*"  # those that it requires are down, or kept for an earlier job
    IN_RESERVATION = "Reservation"  # its own has not begun
    BEGIN = "BeginTime"  # it is to come
    ARRAY_LIMIT = "JobArrayTaskLimit"  # others of its array have to end first
    # It is too large for what its association, QOS or partition may use, all or by now.
    SIZE_LIMIT = r"((Assoc|QOS)(Grp|Max)|Max)(GRES|Node|C[Pp][Uu]|Mem|Billing)(?!PerLimit)\w*|PartitionNodeLimit"
    JOBS_LIMIT = r"((Assoc|QOS)(Grp|Max)|Max)\w*Jobs\w*"  # at any size, others of its association or QOS have to end
    HELD = "(?i:.*held.*|jobhold.*)"  # it waits for `scontrol release`
    OTHER = "(?s:.*)"


ROOM = frozenset({WaitReason.RESOURCES, WaitReason.PRIORITY})
"""Slurm starts such a job as soon as there is room; where it `MAY_BE_ROOM`, no other reason is known."""
MAY_BE_ROOM = ROOM | {WaitReason.TIER, WaitReason.UNTESTED}
LIMITS = frozenset({WaitReason.SIZE_LIMIT, WaitReason.JOBS_LIMIT, WaitReason.ARRAY_LIMIT})
"""Free GPUs do not let such a job start."""


@lru_cache(maxsize=4096)
def wait_reason(text: str) -> WaitReason:
    """What squeue's reason means; some releases print underscores for spaces."""
    shown = text.replace("_", " ")
    return next(kind for kind in WaitReason if re.fullmatch(kind.value, shown))
