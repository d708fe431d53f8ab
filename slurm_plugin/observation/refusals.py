"""How long Slurm is not asked again for what it has refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_FIRST_S = 60.0
_LONGEST_S = 600.0


class _Refusal(NamedTuple):
    until_s: float
    holds_s: float
    why: str


class Refusals:
    """What Slurm has refused, by job: for a minute, and twice as long after each further refusal, up to ten minutes.

    When Slurm has not refused again for as long as the last one held, it is forgotten.
    """

    def __init__(self) -> None:
        self._by_job: dict[int, _Refusal] = {}

    def note(self, job_id: int, why: str, now_s: float) -> None:
        """Slurm has refused a job something, in these words."""
        before = self._by_job.get(job_id)
        if before is None or now_s >= before.until_s:
            holds_s = min(2 * before.holds_s, _LONGEST_S) if before else _FIRST_S
            self._by_job[job_id] = _Refusal(now_s + holds_s, holds_s, why)

    def at(self, now_s: float) -> Mapping[int, str]:
        """The jobs for which Slurm is not asked now, and its words."""
        self._by_job = {n: one for n, one in self._by_job.items() if now_s < one.until_s + one.holds_s}
        return {job_id: one.why for job_id, one in self._by_job.items() if now_s < one.until_s}
