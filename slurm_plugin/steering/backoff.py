"""How often the daemon may ask and change things, given how busy slurmctld is. Pure."""

from __future__ import annotations

from msgspec import Struct

from slurm_plugin.client.capabilities import RateLimit
from slurm_plugin.client.records import ControllerLoad
from slurm_plugin.config import BackpressureSection

_OTHER_REQUESTS = 15
"""A pass reads with 7 requests; some more are for leases and preemptions."""


class Backoff(Struct, frozen=True):
    """The time until the next look at slurmctld's load, and whether a pass may be made now."""

    interval_s: float
    may_pass: bool
    is_busy: bool


def is_busy(load: ControllerLoad, limits: BackpressureSection) -> bool:
    """Whether slurmctld should be left alone for a while."""
    return load.server_threads >= limits.server_threads or load.last_cycle_s > limits.cycle_s


def backoff(load: ControllerLoad, last_interval_s: float, usual_s: float, limits: BackpressureSection) -> Backoff:
    """Put the pass off while slurmctld is busy, twice as long each time; at the widest interval pass all the same.

    Steering that stopped for good on a busy cluster would be no steering, and what a pass costs is bounded.
    """
    if not is_busy(load, limits):
        return Backoff(usual_s, may_pass=True, is_busy=False)
    widest_s = max(usual_s, limits.widest_interval_s)
    return Backoff(min(widest_s, 2 * last_interval_s), may_pass=last_interval_s >= widest_s, is_busy=True)


def most_written(limit: RateLimit | None, interval_s: float, most: int) -> int:
    """How many site factors a pass may write, so that slurmctld never tells us to wait.

    It lets the rest wait in their process for a second and more each, and a pass would last longer than its timeout.
    """
    return most if limit is None else max(1, min(most, limit.requests(interval_s) - _OTHER_REQUESTS))
