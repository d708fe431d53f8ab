"""What is known of GPUs: their memory by their names, and who holds them."""

from __future__ import annotations

import pytest

from slurm_plugin.cli.gpus import NodeGpus, of_cluster
from slurm_plugin.client.records import ClusterRecords, SlurmNode, gpu_memory_mib, gpu_memory_of_node
from tests.slurm_kit import record


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("gpumem80g", 80),
        ("a100_80gb", 80),
        ("a100-40gb", 40),
        ("nvidia_h100_80gb_hbm3", 80),
        ("vram-24gb", 24),
        ("h200", 141),
        ("rtx_4090", 24),
        ("l40s", 48),
        ("a100", 0),  # 40 or 80
        ("512g", 0),  # of the node
        ("mem512g", 0),
        ("fast", 0),
        ("c6420", 0),
    ],
)
def test_names_tell_the_memory_of_gpus(name: str, gib: int) -> None:
    assert gpu_memory_mib(name) == gib * 1024


def test_of_a_node_the_type_counts_before_features_and_of_several_the_smallest() -> None:
    assert gpu_memory_of_node({"h200"}, {"gpumem80g"}) == (141 * 1024, "")
    assert gpu_memory_of_node({"a100"}, {"gpumem80g", "fast"}) == (80 * 1024, "gpumem80g")
    assert gpu_memory_of_node({"l4", "h100"}, ()) == (24 * 1024, "")
    assert gpu_memory_of_node((), {"fast"}) == (0, "")


def test_gpus_are_listed_with_who_holds_them() -> None:
    nodes = (
        SlurmNode("n2", "IDLE", 2, frozenset()),
        SlurmNode("n1", "MIXED", 4, frozenset(), gpu_types=frozenset({"h100"})),
        SlurmNode("cpu", "IDLE", 0, frozenset()),
    )
    whole = record(7, state="RUNNING", gpus=2, gpu_nodes=(("n1", 2),), node_names=("n1",))
    parts = [record(n, state="RUNNING", gpus=0, node_names=("n1",), gpu_indices=(("n1", (3,)),)) for n in (8, 9)]
    waiting = record(10, gpus=1)
    assert of_cluster(ClusterRecords(nodes, (whole, *parts, waiting), ())) == [
        NodeGpus("n1", "MIXED", "h100", 80 * 1024, 4, 3, (7, 8, 9)),
        NodeGpus("n2", "IDLE", "", 0, 2, 0, ()),
    ]
