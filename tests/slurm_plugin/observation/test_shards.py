"""What a policy sees of jobs that ask for shards."""

from pathlib import Path

import pytest

from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import GpuRequest, NodeGpus
from slurm_plugin.client.records import ClusterRecords, SlurmNode
from slurm_plugin.observation import requirements
from slurm_plugin.observation.observe import observe
from slurm_plugin.observation.spool import ProgressSpool
from tests.sched_policy.builders import NOW_S
from tests.slurm_kit import record
from tests.slurm_plugin.steering.grouped import look, on_gpu, waiting


@pytest.mark.parametrize(
    ("wants", "nodes", "request_", "shares"),
    [
        (1, 1, GpuRequest.on_each(1, 1), True),
        (3, 2, GpuRequest.on_each(2, 1), True),
        (4, 1, GpuRequest.on_each(1, 1), False),
        (5, 1, GpuRequest.on_each(1, 2), False),
    ],
)
def test_a_request_for_shards(wants: int, nodes: int, request_: GpuRequest, *, shares: bool) -> None:
    job = waiting(1, wants, nodes=nodes)
    assert (requirements.gpu_request(job, 4), requirements.asks_for_a_part(job, 4)) == (request_, shares)


def test_a_request_for_gpus_shares_with_nobody() -> None:
    job = record(1, gpus=2, gpus_per_node=2)
    assert (requirements.gpu_request(job, 4), requirements.asks_for_a_part(job, 4)) == (GpuRequest(2, 1, 2), False)


def test_without_shards_on_any_node_nothing_changes() -> None:
    assert (
        requirements.most_shards_per_gpu(
            [SlurmNode("n1", "IDLE", 4, frozenset()), SlurmNode("n2", "IDLE", 0, frozenset())]
        )
        == 0
    )
    assert requirements.gpu_request(waiting(1), 0) == GpuRequest(0, 1, None)


def test_gpus_that_are_held() -> None:
    assert requirements.gpu_allocation(on_gpu(1, 3), 4) == (NodeGpus("n1", 1, (3,)),)
    assert requirements.gpu_allocation(on_gpu(1, 3, gpu_indices=()), 4) == (NodeGpus("n1", 1),)
    seen = look(on_gpu(1, 0), on_gpu(2, 0), waiting(3))
    assert [job.allocation for job in seen.snapshot.jobs] == [(NodeGpus("n1", 1, (0,)),)] * 2 + [()]


@pytest.mark.parametrize("policy", ["explsched-share", "muri-s", "sjf-ffs", "antman"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_on_a_gpu_that_its_node_has_no_more_shares_none(tmp_path: Path, policy: str, gpus: int) -> None:
    """A node may lose a GPU, or get another number, while a job runs there."""
    node = SlurmNode("n1", "MIXED", gpus, frozenset({"main"}), shards=4 * gpus)
    records = ClusterRecords((node,), (on_gpu(1, gpus), on_gpu(2, gpus + 3), waiting(3)), ())
    snapshot = observe(records, ProgressSpool(tmp_path), NOW_S).snapshot
    assert [job.allocation for job in snapshot.jobs[:2]] == [(NodeGpus("n1", 1),)] * 2
    assert checked_plan(catalog.build(policy), snapshot).starts == ()
