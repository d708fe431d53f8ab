"""How long Slurm is not asked again for what it has refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_FIRST_S = 60.0
_LONGEST_S = 600.0


class _Pause(NamedTuple):
    until_s: float
    length_s: float
    why: str


class Pauses:
    """Pauses after refusals, by job: of a minute, and twice as long after each further one, up to ten minutes.

    When Slurm has not refused again for as long as the last pause was, it is forgotten.
    """

    def __init__(self) -> None:
        self._by_job: dict[int, _Pause] = {}

    def begin(self, job_id: int, why: str, now_s: float) -> None:
        """Slurm has refused a job something, in these words."""
        before = self._by_job.get(job_id)
        if before is None or now_s >= before.until_s:
            length_s = min(2 * before.length_s, _LONGEST_S) if before else _FIRST_S
            self._by_job[job_id] = _Pause(now_s + length_s, length_s, why)

    def at(self, now_s: float) -> Mapping[int, str]:
        """The jobs for which Slurm is not asked now, and its words."""
        self._by_job = {n: pause for n, pause in self._by_job.items() if now_s < pause.until_s + pause.length_s}
        return {job_id: pause.why for job_id, pause in self._by_job.items() if now_s < pause.until_s}
