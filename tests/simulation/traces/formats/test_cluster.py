"""A cluster can be a word, our own file or Muri's."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.traces.formats.cluster import read_cluster
from simulation.traces.trace import ClusterShape, TraceError

MURI = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.yaml", "nodes: 6\ngpus_per_node: 4\n"),
        ("c.yml", "gpus_per_node: 4\nnodes: 6\n"),
        ("c.json", '{"nodes": 6, "gpus_per_node": 4}'),
        ("c.csv", MURI + "2,3,4,92,520"),
        ("c", MURI + "1,6,4,92,520\n"),
    ],
)
def test_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read_cluster(str(tmp_path / name)) == ClusterShape(6, 4)


def test_a_word() -> None:
    assert read_cluster("6x4") == ClusterShape(6, 4)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("0x8", "cluster 0x8: nodes is not in the accepted range from 1 to"),
        ("8x0", "gpus_per_node is not in the accepted range"),
        ("8x9999", "gpus_per_node is not in the accepted range"),
        ("8by8", "cluster '8by8': neither a shape nor a file; accepted: NODESxGPUS such as 8x8"),
        ("", "neither a shape|directory"),
        ("/nowhere/c.yaml", "c.yaml: No such file"),
        ("/", "a directory"),
        ("a\0b", "neither a shape"),
        ("x" * 5000, "neither a shape"),
    ],
)
def test_words_that_are_no_cluster(word: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read_cluster(word)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.yaml", "", "found NoneType, accepted: the keys nodes and gpus_per_node"),
        ("c.yaml", "[1, 2]", "found list"),
        ("c.yaml", "nodes: 6\ngpu_per_node: 4", "unknown key gpu_per_node, the nearest known is gpus_per_node"),
        ("c.yaml", "nodes: 6", "gpus_per_node: found nothing"),
        ("c.yaml", "nodes: true\ngpus_per_node: 4", "nodes: found bool, accepted: whole numbers"),
        ("c.yaml", "nodes: 1.5\ngpus_per_node: 4", "nodes: found float"),
        ("c.yaml", "nodes: -1\ngpus_per_node: 4", "nodes is not in the accepted range"),
        ("c.yaml", "nodes: 0x" + "f" * 3000 + "\ngpus_per_node: 4", "nodes is not in the accepted range"),
        ("c.yaml", "nodes: " + "9" * 3000 + "\ngpus_per_node: 4", "nodes is not in the accepted range"),
        ("c.yaml", "nodes: [", "not YAML"),
        ("c.json", "[" * 4000, "not YAML"),
        ("c.yaml", "# " + "x" * 70000, "longer than 4,096 bytes"),
        ("c.csv", MURI, "found 0 rows, accepted: one"),
        ("c.csv", MURI + "1,8,8,92,520\n1,8,8,92,520\n", "found 2 rows"),
        ("c.csv", MURI + "1,0,8,92,520\n", "line 2: num_node_p_switch: found '0'"),
        ("c.csv", MURI + "1000,10000,8,92,520\n", "nodes is not in the accepted range"),
        ("c.csv", "nodes,gpus\n1,2\n", "line 1: the header lacks num_switch, num_node_p_switch, num_gpu_p_node"),
    ],
)
def test_files_that_are_no_cluster(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TraceError, match=words):
        read_cluster(str(tmp_path / name))
