"""The names of leases: how one of ours is told from other reservations."""

from __future__ import annotations

import re

LEASE_PREFIX = "explsched_"
_LEASE_NAME = re.compile(rf"{LEASE_PREFIX}(\d+)")


def lease_name(job_id: int) -> str:
    """The name of the reservation that promises `job_id` its start."""
    return f"{LEASE_PREFIX}{job_id}"


def leased_job(name: str) -> int | None:
    """The job a lease is for; None for a reservation that is not ours."""
    match = _LEASE_NAME.fullmatch(name)
    return int(match[1]) if match else None
