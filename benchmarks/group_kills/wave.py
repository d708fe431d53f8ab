"""One wave: two groups of four are planned while the GPUs are busy, start together, and come under fire."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from benchmarks.group_kills.victims import KINDS as KILLS
from benchmarks.group_kills.victims import Kill, strike
from slurm_plugin.client.changes import StartAtOnce
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster.machine import until
from slurm_plugin.devcluster.sharing import GPUS, KINDS, PER_GPU, Site
from slurm_plugin.observation.standing import has_settled, waits_for_requeue_delay
from slurm_plugin.steering.grouping import live_groups

_PATIENCE_S = 120.0


@dataclass(slots=True)
class Battle:
    """What has happened so far."""

    site: Site
    chance: Random
    daemon: subprocess.Popen[bytes]
    kills: list[Kill] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    verified: int = 0

    @property
    def aim(self) -> str:
        """The kind of the next kill."""
        return KILLS[len(self.kills) % len(KILLS)]

    def fight(self, kills: int, work_s: float, pause_s: float) -> None:
        """One wave with up to so many kills; returns when all its jobs have ended. Raises `DevClusterError`."""
        filler = self.site.filler(GPUS)
        self._until(lambda: self._states([filler]) == ["RUNNING"], "the GPUs are busy")
        wave = [self.site.member(KINDS[i * len(KINDS) // (GPUS * PER_GPU)], work_s) for i in range(GPUS * PER_GPU)]
        self.jobs += wave
        self._until(lambda: self._groups(wave) == GPUS, "groups are planned")
        subprocess.run(["scancel", str(filler)], env=dict(self.site.environment), check=True)
        self._until(lambda: self._groups(wave, verified=True) == GPUS, "groups are verified")
        self.verified += GPUS
        before = len(self.kills)
        while len(self.kills) - before < kills and self._members(wave):
            time.sleep(self.chance.uniform(0, 2 * pause_s))
            self._kill(self.aim, self._members(wave))
            self._start_requeued()
        self._until(lambda: not self._start_requeued(), "all jobs end")

    def _kill(self, kind: str, members: list[int]) -> None:
        if kind == "daemon":
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = self.site.start_daemon()
            self.kills.append(Kill(kind))
        elif done := strike(self.site, kind, members, self.chance):
            self.kills.append(done)

    def _start_requeued(self) -> list[SlurmJob]:
        """Lift the two minutes that Slurm makes a requeued job wait, when the daemon would; returns all jobs left.

        The daemon itself leaves these jobs alone: they did not consent to preemption.
        """
        jobs, now_s = list(self.site.client.jobs()), time.time()
        settled = [job for job in jobs if waits_for_requeue_delay(job, now_s) and has_settled(job, now_s)]
        self.site.client.apply([StartAtOnce(job.job_id) for job in settled])
        return jobs

    def _members(self, wave: list[int]) -> list[int]:
        return [job.job_id for job in self.site.client.jobs() if job.job_id in wave and job.state == "RUNNING"]

    def _states(self, wanted: list[int]) -> list[str]:
        return [job.state for job in self.site.client.jobs() if job.job_id in wanted]

    def _groups(self, wave: list[int], *, verified: bool = False) -> int:
        """Complete groups of this wave: all its jobs wait, or all run on the same GPU."""
        groups = [g for g in live_groups(self.site.client.jobs()) if set(g.job_ids) <= set(wave) and g.is_complete]
        return sum(group.size == PER_GPU and bool(group.verified) is verified for group in groups)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, what, _PATIENCE_S)
