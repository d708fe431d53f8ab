"""The order that a pass writes to Slurm is the one whose positions it records as used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.records import SlurmNode
from slurm_plugin.config import AuditSection, Config, OrderSection, ProgressSection
from slurm_plugin.steering.controller import Controller
from tests.sched_policy.builders import NOW_S
from tests.slurm_kit import FakeSlurm
from tests.slurm_plugin.steering.grouped import PER_GPU, on_gpu, waiting


class OneGpu(FakeSlurm):
    """A site with one GPU, which holds shards."""

    def nodes(self) -> tuple[SlurmNode, ...]:
        return (SlurmNode("n1", "MIXED", 1, frozenset({"main"}), shards=PER_GPU),)


def test_a_job_that_starts_beside_another_on_the_position_of_an_older_one_uses_it_up(tmp_path: Path) -> None:
    """Otherwise one young job after another could be put before other users' jobs by the same old one."""
    taker = "explsched:job-class=opportunistic"
    old: dict[str, Any] = {"natives": (5000,), "priority": 5000, "submit_s": NOW_S - 600}
    young: dict[str, Any] = {"natives": (1000,), "priority": 1000, "submit_s": NOW_S - 50}
    slurm = OneGpu((on_gpu(1, 0, comment=taker), waiting(10, comment=taker, **old), waiting(11, **young)))
    order = OrderSection(scope="user", site_factor_file=tmp_path / "site_factors.json")
    kept: dict[str, Any] = {"progress": ProgressSection(spool=tmp_path), "audit": AuditSection(file=tmp_path / "audit")}
    daemon = Controller(slurm, replace(Config(policy="antman", order=order), **kept))
    assert SetSiteFactor(11, 4010) in daemon.reconcile(NOW_S).changes
    slurm.known[11] = on_gpu(11, 0, start_s=NOW_S)
    jobs = {job.job_id: job for job in daemon.decide(NOW_S + 15).seen.snapshot.jobs}
    assert jobs[10].native_priority == 1000
