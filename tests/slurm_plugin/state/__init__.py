"""A small cluster whose state is published."""

from __future__ import annotations

from pathlib import Path

from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode
from slurm_plugin.config import Config, OrderSection, ProgressSection, StateSection
from slurm_plugin.state.publish import Publisher
from slurm_plugin.state.published import State, Totals, read
from slurm_plugin.state.view import View
from tests.slurm_kit import record

NOW_S = 1_000_000.0
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e" + "x" * 300
NODES = (
    SlurmNode("n1", "MIXED", 4, frozenset({"main"}), shards=16),
    SlurmNode("n2", "IDLE+DRAIN", 4, frozenset({"main"}), shards=16),
)


def running(job_id: int, **fields: object) -> SlurmJob:
    held = {"state": "RUNNING", "start_s": NOW_S - 60, "node_names": ("n1",), "gpu_nodes": (("n1", 2),)}
    return record(job_id, **{**held, "gpus": 2, "gpus_per_node": 2, **fields})


JOBS = (
    running(41, user="ada", shards_per_node=4, gpu_indices=(("n1", (0, 1)),)),
    running(42, user="bob", shards_per_node=4, gpu_indices=(("n1", (0, 1)),), comment="explsched:sweep=digits"),
    record(43, user="ada", name=HOSTILE, reason="Resources", natives=(100,)),
    record(44, user="bob", gpus=0, gpus_per_node=None, reason="Dependency"),
)


def configured(directory: Path) -> Config:
    """Everything below one directory."""
    (directory / "spool").mkdir(exist_ok=True)
    return Config(
        policy="srsf",
        progress=ProgressSection(spool=directory / "spool"),
        order=OrderSection(site_factor_file=directory / "site_factors.json"),
        state=StateSection(directory=directory / "state"),
    )


def published(directory: Path, *hidden: str, jobs: tuple[SlurmJob, ...] = JOBS, now_s: float = NOW_S) -> State:
    """Publish the cluster with these words of PrivateData, and read what was written."""
    config = configured(directory)
    view = View.of(config, ClusterRecords(NODES, jobs, ()), now_s)
    changes = (SetSiteFactor(43, 5),)
    Publisher(config.state.directory).publish(view, changes, hidden, "tests", Totals(passes=3, writes=1, pass_s=0.5))
    found = read(config.state.directory)
    assert found is not None
    return found
