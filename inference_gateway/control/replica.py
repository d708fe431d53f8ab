"""One replica as the control plane knows it, and the phases of its life. How it goes on is in `transitions`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """Where a replica stands."""

    SUBMITTING = "submitting"
    """sbatch is under way, or its answer was lost."""
    PENDING = "pending"
    STARTING = "starting"
    """Its job runs and does not serve yet."""
    SERVING = "serving"
    DRAINING = "draining"
    """Takes nothing new, finishes what it has."""
    ENDING = "ending"
    """Cancelled; Slurm still has the job."""


COMING = frozenset({Phase.SUBMITTING, Phase.PENDING, Phase.STARTING})
LIVE = COMING | {Phase.SERVING}


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as the control plane knows it. Times are seconds since the epoch; `since_s` is when `phase` began.

    `asked_s` is the submission, `ends_s` the time limit's end (None while unknown or without one). `burst` replicas lie
    above the service's minimum. `reason` says why it leaves. `sick_s` is since when the data plane finds it down.
    """

    service: str
    name: str
    generation: str
    phase: Phase
    since_s: float
    asked_s: float
    burst: bool = False
    job_id: int | None = None
    restarts: int = 0
    host: str = ""
    port: int = 0
    limit_s: float | None = None
    ends_s: float | None = None
    sick_s: float | None = None
    reason: str = ""

    def to(self, phase: Phase, now_s: float, reason: str = "") -> Replica:
        """The same replica in another phase."""
        return replace(self, phase=phase, since_s=now_s, reason=reason or self.reason)
