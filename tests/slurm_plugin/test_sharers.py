"""What status and explain say about jobs that share a GPU."""

import pytest

from slurm_plugin.observation.observe import Observation
from slurm_plugin.state.view import GpuHolders
from tests.slurm_plugin.steering.grouped import look, on_gpu, waiting

MARK = {"admin_comment": "explsched-group:group=1&of=2&node=n1&since=5"}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (on_gpu(2, 0, **MARK), "group 1 with 2: verified"),
        (on_gpu(2, 1, **MARK), "group 1 with 2: apart: Slurm chose different GPUs"),
        (waiting(2, **MARK), "group 1 with 2: waits for 2"),
        (on_gpu(2, 0), "group 1: dissolves: one of its jobs has ended"),
    ],
)
def test_a_group_in_one_phrase(second: object, words: str) -> None:
    assert GpuHolders.of(look(on_gpu(1, 0, **MARK), second)).summary(1) == words


def test_who_shares_without_a_plan() -> None:
    sharers = GpuHolders.of(look(on_gpu(1, 0), on_gpu(2, 0), on_gpu(3, 1), waiting(4)))
    assert [sharers.summary(job) for job in (1, 3, 4)] == ["shares its GPU with 2", "", ""]
    assert [sharers.device(job) for job in (1, 3, 4)] == ["n1:0", "n1:1", ""]


def explained(seen: Observation, job_id: int) -> list[str]:
    return list(GpuHolders.of(seen).sentences(next(job for job in seen.snapshot.jobs if job.job_id == job_id)))


def test_sentences() -> None:
    seen = look(on_gpu(1, 0, **MARK), on_gpu(2, 0, **MARK), waiting(3), on_gpu(4, 1, gpus=1, shards_per_node=0))
    assert explained(seen, 1) == [
        "It holds GPU n1:0, together with 2.",
        "It is one of the 2 jobs of group 1 (1, 2): verified.",
    ]
    assert explained(seen, 3) == ["It asks for a part of a GPU, so others may run beside it."]
    assert explained(seen, 4) == ["It holds GPU n1:1."]
    pinned = look(waiting(5, required_nodes=("n1",), admin_comment="explsched-group:node=n1&since=5"))
    assert "It is pinned to node n1" in explained(pinned, 5)[-1]
    paused = look(waiting(5, admin_comment="explsched-group:pause=99999999"))
    assert "left to Slurm for some minutes" in explained(paused, 5)[-1]
