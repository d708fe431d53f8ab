"""When nodes are not there for the planned jobs: reservations, and nodes that one user has for themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.model import Absence
from slurm_plugin.client import parse
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode, SlurmReservation
from slurm_plugin.observation.absences import absences
from slurm_plugin.observation.gpu_hours import gpus_of
from slurm_plugin.observation.observe import observe
from slurm_plugin.observation.spool import ProgressSpool
from tests.slurm_kit import record

NOW_S = 10_000.0
NODES = tuple(SlurmNode(name, "MIXED", 2, frozenset({"main"}), cpus=16, memory_mib=64_000) for name in ("n1", "n2"))

# As scontrol of Slurm 22.05.8 prints a reservation of cores.
OF_CORES = (
    "ReservationName=login StartTime=9000 EndTime=45000 Duration=10:00:00 Nodes=n[1-2] "
    "NodeCnt=2 CoreCnt={cores} Features=(null) PartitionName=main Flags=IGNORE_JOBS,SPEC_NODES   NodeName=n1 CoreIDs=0 "
    "  NodeName=n2 CoreIDs=0 TRES={tres} Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE "
    "BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)


def told(*jobs: SlurmJob, reservations: Iterable[SlurmReservation] = ()) -> list[Absence]:
    return list(absences(ClusterRecords(NODES, jobs, tuple(reservations)), NOW_S))


def runs(exclusive: str, **more: object) -> SlurmJob:
    fields = {"gpus": 1, "gpus_per_node": 1, "gpu_nodes": (("n2", 1),), "node_names": ("n2",), "user": "eve"}
    times = {"start_s": NOW_S - 600, "time_limit_s": 3600.0}
    return record(1, exclusive=exclusive, **{"state": "RUNNING", **fields, **times, **more})


def holding_n1(user: str) -> SlurmJob:
    """A long job on all GPUs of n1 that may be preempted."""
    fields = {"gpus": 2, "gpus_per_node": 2, "gpu_nodes": (("n1", 2),), "node_names": ("n1",)}
    times = {"start_s": NOW_S - 7200, "time_limit_s": 36_000.0}
    return record(3, user=user, state="RUNNING", comment="explsched:checkpoint=USR1", **fields, **times)


@pytest.mark.parametrize("exclusive", ["USER", "MCS"])
def test_a_node_that_one_user_has_alone_is_not_there_for_others(exclusive: str) -> None:
    short = record(2, user="ada", gpus=1, gpus_per_node=1, reason="Resources", time_limit_s=60.0)
    held = holding_n1("ada")
    seen = observe(ClusterRecords(NODES, (runs(exclusive), short, held), ()), ProgressSpool(Path("/nowhere")), NOW_S)
    plan = catalog.build("srsf").plan(seen.snapshot)
    assert plan.starts == (), "the other GPU of n2 is its owner's"
    assert [one.job_id for one in plan.preemptions] == [3]
    (owner,) = (job for job in seen.snapshot.jobs if job.job_id == 1)
    assert gpus_of(owner) == 1, "it has no more GPU-hours"


def test_until_when_its_owner_has_a_node() -> None:
    assert told(runs("USER"), runs("USER", time_limit_s=1200.0)) == [Absence(("n2",), NOW_S, NOW_S + 3000)]
    assert told(runs("USER", suspended_s=100.0)) == [Absence(("n2",), NOW_S, NOW_S + 3100)]
    assert told(runs("USER", gpus=0, gpu_nodes=())) != [], "also with a job on CPUs alone"
    for unknown in ({"time_limit_s": None}, {"time_limit_s": 1.0}):
        assert told(runs("USER", **unknown)) == [Absence(("n2",), NOW_S, math.inf)]
    assert told(runs(""), runs("NODE"), record(2, exclusive="USER")) == []
    assert told(runs("USER", state="COMPLETING")) == [], "it is free once that job is gone"


@pytest.mark.parametrize(("gpus_taken", "is_preempted"), [(1, False), (2, True)])
def test_no_job_leaves_for_one_whose_owner_has_room_on_a_node_of_his_own(
    *, gpus_taken: int, is_preempted: bool
) -> None:
    """Slurm starts it there."""
    held = holding_n1("eve")
    waits = record(4, user="eve", gpus=1, gpus_per_node=1, reason="Priority", time_limit_s=600.0)
    nodes = (NODES[0], replace(NODES[1], gpus_taken=gpus_taken))
    seen = observe(ClusterRecords(nodes, (runs("USER"), held, waits), ()), ProgressSpool(Path("/nowhere")), NOW_S)
    plan = catalog.build("srsf").plan(seen.snapshot)
    assert bool(plan.preemptions) is is_preempted


@pytest.mark.parametrize(
    ("cores", "tres", "is_absent"),
    [
        (2, "cpu=2", False),
        (16, "cpu=16", False),
        (17, "cpu=17", True),
        (32, "cpu=32", True),
        (2, "cpu=2,gres/gpu=1", True),
        (0, "(null)", True),
    ],
)
def test_gpus_beside_a_few_reserved_cores_are_there(*, cores: int, tres: str, is_absent: bool) -> None:
    found = parse.reservation(OF_CORES.format(cores=cores, tres=tres))
    assert bool(told(reservations=[found])) is is_absent


@pytest.mark.parametrize(("cpus", "starts_on"), [(14, ["n2"]), (15, [])])
def test_reserved_cores_are_nobodys(cpus: int, starts_on: list[str]) -> None:
    found = parse.reservation(OF_CORES.format(cores=4, tres="cpu=4"))
    full = record(3, state="RUNNING", gpus=2, gpus_per_node=2, gpu_nodes=(("n1", 2),), node_names=("n1",), start_s=1.0)
    waits = record(2, gpus=2, gpus_per_node=2, reason="Resources", time_limit_s=60.0, cpus=cpus)
    seen = observe(ClusterRecords(NODES, (waits, full), (found,)), ProgressSpool(Path("/nowhere")), NOW_S)
    (starts,) = ([share.node for one in catalog.build("srsf").plan(seen.snapshot).starts for share in one.placement],)
    assert starts == starts_on
