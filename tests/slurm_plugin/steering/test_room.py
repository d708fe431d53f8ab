"""Nobody is interrupted for a job that CPUs or memory would keep from starting all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sched_policy.plan import Plan, Preemption
from slurm_plugin.client.records import ClusterRecords, SlurmNode
from slurm_plugin.observation.observe import observe
from slurm_plugin.observation.progress import ProgressSpool
from slurm_plugin.steering.preemption import without_vain_preemptions
from tests.slurm_kit import record


def preempted(node: dict[str, Any], **beneficiary: Any) -> int:
    """Preemptions that are left of one, on a node of 16 CPUs whose only GPU job has 8 of them and 8 GB."""
    held = {"state": "RUNNING", "start_s": 1.0, "gpu_nodes": (("n1", 4),), "node_names": ("n1",)}
    victim = record(1, cpus=8, memory_mib=8_000, comment="explsched:checkpoint=USR1", **held)
    shape = {"cpus": 16, "cpus_taken": 8, "memory_mib": 64_000, "memory_taken_mib": 8_000, **node}
    there = SlurmNode("n1", "ALLOCATED", 4, frozenset({"main"}), **shape)
    waits = record(2, reason="Resources", **{"cpus": 8, "memory_mib": 8_000, **beneficiary})
    seen = observe(ClusterRecords((there,), (victim, waits), ()), ProgressSpool(Path("/nowhere")), 10_000.0)
    return len(without_vain_preemptions(Plan(preemptions=(Preemption(1, "", 2),)), seen).preemptions)


def test_what_the_victim_leaves_is_enough() -> None:
    assert preempted({}) == 1
    assert preempted({"cpus_taken": 16, "memory_taken_mib": 64_000}) == 1


@pytest.mark.parametrize("needs", [{"cpus": 9}, {"cpus": 1, "cpus_per_gpu": 3}, {"memory_mib": 8_001}, {"nodes": 2}])
def test_jobs_without_gpus_hold_the_rest(needs: dict[str, Any]) -> None:
    assert preempted({"cpus_taken": 16, "memory_taken_mib": 64_000}, **needs) == 0


def test_what_slurm_does_not_tell_is_enough() -> None:
    assert preempted({"cpus": 0, "cpus_taken": 0, "memory_mib": 0, "memory_taken_mib": 0}, cpus=100) == 1


def test_gpus_of_any_nodes() -> None:
    assert preempted({}, gpus_per_node=None, gpus=4) == 1
    assert preempted({"cpus_taken": 16}, gpus_per_node=None, gpus=4, cpus=9) == 0
