"""Builders for snapshots: every test states only what it is about."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.model import Exploration, GpuRequest, Job, JobState, Node, NodeGpus, ProgressPoint
from sched_policy.policy import Policy
from sched_policy.snapshot import Snapshot

NOW_S = 10_000.0


def job(job_id: int, gpus: int = 1, **fields: Any) -> Job:
    """A waiting job, submitted in the order of the ids, limited to an hour."""
    base = Job(job_id, GpuRequest(gpus), submit_s=float(job_id), user="ada", partition="main", time_limit_s=3600.0)
    return replace(base, **fields)


def row(name: str, options: catalog.PolicyOptions | None = None) -> Policy:
    """The policy of the catalogue with its parts."""
    policy = catalog.build(name, options)
    assert isinstance(policy, Policy)
    return policy


def running(job_id: int, node: str, gpus: int = 1, ran_s: float = 1000.0, **fields: Any) -> Job:
    """A job that has held GPUs of one node for `ran_s`."""
    held = {"state": JobState.RUNNING, "start_s": NOW_S - ran_s, "allocation": (NodeGpus(node, gpus),)}
    fields = {**held, "first_report_s": NOW_S - ran_s, **fields}
    return job(job_id, gpus, **fields)


def curve(best: float, rate: float, spent_gpu_s: float, reports: int = 12) -> tuple[ProgressPoint, ...]:
    """Reports of a loss that falls from 1 towards `best` as a power law of the GPU-seconds."""
    xs = [spent_gpu_s * (i + 1) / reports for i in range(reports)]
    return tuple(ProgressPoint(i + 1, x, best + (1 - best) * (1 + x / 100) ** -rate) for i, x in enumerate(xs))


def nodes(count: int = 2, gpus: int = 4) -> tuple[Node, ...]:
    return tuple(Node(f"n{i + 1}", gpus, frozenset({"main"})) for i in range(count))


def snapshot(*jobs: Job, on: tuple[Node, ...] | None = None) -> Snapshot:
    return Snapshot.of(NOW_S, on or nodes(), jobs)


EXPLORING = Exploration(sweep="digits", checkpoint_signal="USR1", may_stop=True)
