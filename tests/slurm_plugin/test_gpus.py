"""What is known of GPUs: their memory by their names, and who holds them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from slurm_plugin.cli.gpus import NodeUse, of_cluster
from slurm_plugin.client import parse
from slurm_plugin.client.gpu_memory import gpu_memory_mib, gpu_memory_of_node
from slurm_plugin.client.records import ClusterRecords, SlurmNode
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
        ("1g.5gb", 5),
        ("a100_3g.20gb", 20),
        ("nvidia_a100-sxm4-40gb_1g.5gb", 5),
        ("nvidia_h100_80gb_hbm3_1c.3g.40gb", 40),
        ("h200_1g.18gb+me", 18),
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
        NodeUse("n1", "MIXED", "h100", 80 * 1024, 4, 3, (7, 8, 9)),
        NodeUse("n2", "IDLE", "", 0, 2, 0, ()),
    ]


def test_gpus_of_hidden_jobs_are_in_use() -> None:
    """As other users see them under PrivateData=jobs."""
    line = "NodeName=n1 State=MIXED Gres=gpu:h100:8 AllocTRES=cpu=8,mem=1G,gres/gpu=6,gres/gpu:h100=6"
    own = record(7, state="RUNNING", gpus=2, gpu_nodes=(("n1", 2),), node_names=("n1",))
    (found,) = of_cluster(ClusterRecords((parse.node(line),), (own,), ()))
    assert (found.used, found.jobs) == (6, (7,))


class Counted(tuple[tuple[str, int], ...]):
    """Nodes of a job that count how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        Counted.reads += 1
        return super().__iter__()


def test_the_nodes_of_a_job_are_read_once_however_many_nodes_there_are() -> None:
    """1,000 nodes with 8,000 jobs took seconds."""
    nodes = tuple(SlurmNode(f"n{n}", "MIXED", 8, frozenset()) for n in range(20))
    jobs = tuple(record(n + 1, state="RUNNING", gpus=8, gpu_nodes=Counted([(f"n{n}", 8)])) for n in range(20))
    Counted.reads = 0
    assert [use.jobs for use in of_cluster(ClusterRecords(nodes, jobs, ())) if use.node == "n7"] == [(8,)]
    assert Counted.reads <= len(jobs)


NVML = r"""
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "double"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
  *device = (void *)(long)(index + 1); return index == 0 && getenv("LOST") ? 15 : 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *m) {
  m->total = 80ULL << 30; m->used = (unsigned long long)(long)device << 30; m->free = m->total - m->used; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned int length) { strncpy(name, "H100", length); return 0; }
int nvmlDeviceGetUUID(void *device, char *id, unsigned int length) {
  strncpy(id, (long)device == 1 ? "GPU-a" : "GPU-b", length); return 0; }
int nvmlDeviceGetUtilizationRates(void *device, rates_t *r) {
  r->gpu = 25 * (long)device; r->memory = 0; return (long)device == 1 && getenv("MIG") ? 3 : 0; }
"""
"""A driver's library with two GPUs, which the real pynvml loads; the first may be lost, or be divided by MIG."""
COMMAND = [str(Path(sys.executable).parent / "sexplsched"), "gpus"]


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "nvml.c").write_text(NVML, encoding="ascii")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def test_the_driver_is_asked_on_a_node(driver: dict[str, str]) -> None:
    done = subprocess.run([*COMMAND, "--here", "--json"], env=driver, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        {"index": i, "uuid": uuid, "model": "H100", "memory_mib": 81920, "used_mib": used, "busy_percent": busy}
        for i, uuid, used, busy in ((0, "GPU-a", 1024, 25), (1, "GPU-b", 2048, 50))
    ]


def test_a_gpu_that_is_lost_and_one_with_mig_hide_no_other(driver: dict[str, str]) -> None:
    done = subprocess.run([*COMMAND, "--here", "--json"], env={**driver, "LOST": "1"}, capture_output=True, text=True)
    assert [gpu["uuid"] for gpu in json.loads(done.stdout)] == ["GPU-b"]
    assert "GPU cannot be read gpu=0" in done.stderr
    divided = {**driver, "MIG": "1"}
    done = subprocess.run([*COMMAND, "--here", "--json"], env=divided, capture_output=True, text=True)
    assert [gpu["busy_percent"] for gpu in json.loads(done.stdout)] == [None, 50]
    with exported(divided) as text:
        assert "explsched_gpus_readable 2.0" in text
        assert 'explsched_gpu_memory_used_bytes{gpu="0"' in text
        assert 'explsched_gpu_busy_ratio{gpu="0"' not in text


@contextmanager
def exported(environment: dict[str, str]) -> Iterator[str]:
    """What Prometheus would scrape."""
    serving = subprocess.Popen([*COMMAND, "--serve", "0"], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert serving.stderr is not None
        with urlopen(serving.stderr.readline().strip(), timeout=60) as answer:  # noqa: S310  our own address
            yield answer.read().decode()
    finally:
        serving.terminate()
        serving.communicate(timeout=60)


def test_prometheus_is_told_of_every_gpu(driver: dict[str, str]) -> None:
    with exported(driver) as text:
        assert "explsched_gpus_readable 2.0" in text
        assert 'explsched_gpu_memory_used_bytes{gpu="0",model="H100",uuid="GPU-a"} 1.073741824e+09' in text
        assert 'explsched_gpu_busy_ratio{gpu="1",model="H100",uuid="GPU-b"} 0.5' in text
        told = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
        rules = yaml.safe_load((Path(__file__).parents[2] / "docs" / "daemon_alerts.yml").read_text())["groups"][1]
        asked = {word for rule in rules["rules"] for word in told if word in rule["expr"]}
        assert asked == told  # no metric without a rule, and each rule asks for some
        assert all(any(word in rule["expr"] for word in told) for rule in rules["rules"])


def test_a_node_without_a_driver_says_so(tmp_path: Path) -> None:
    with exported({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}) as text:
        assert "explsched_gpus_readable 0.0" in text
