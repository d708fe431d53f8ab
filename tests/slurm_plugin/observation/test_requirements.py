"""What a job needs beside GPUs: modelled, or left to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.model import Switch
from slurm_plugin.client import parse
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode, SlurmReservation, Topology
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.requirements import unmodelled
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.beneficiaries import without_vain_preemptions
from tests.slurm_kit import record

NOW_S = 10_000.0


def node(name: str, **fields: Any) -> SlurmNode:
    disks = {"tmp_mib": 1_000, "other_gres": (("nvme", 2), ("nvme:fast", 2))}
    base = {
        "cpus": 16,
        "memory_mib": 64_000,
        **disks,
        "features": frozenset({"nvlink"}),
        "gpu_types": frozenset({"a100"}),
    }
    return SlurmNode(name, "IDLE", 4, frozenset({"main", "long"}), **{**base, **fields})


def look(*jobs: SlurmJob, nodes: tuple[SlurmNode, ...] = (node("n1"), node("n2")), **more: Any) -> Observation:
    return observe(ClusterRecords(nodes, jobs, more.get("reservations", ())), ProgressSpool(Path("/nowhere")), NOW_S)


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"het_job_id": 4}, "heterogeneous"),
        ({"exclusive": "NODE"}, "--exclusive"),
        ({"exclusive": "USER"}, "--exclusive"),
        ({"licenses": "matlab:2"}, "licences \\(matlab:2\\)"),
        ({"reservation": "course"}, "reservation course"),
        ({"required_nodes": ("n1",)}, "certain nodes \\(n1\\)"),
        ({"features": "a100|h100&nvlink"}, "not a plain list of features"),
        ({"features": "infiniband|roce"}, "no node of its partition"),
        ({"features": "[rack1*2]"}, "not a plain list of features"),
        ({"features": "infiniband"}, "no node of its partition"),
        ({"gpu_type": "a100,h100"}, "several types"),
        ({"most_switches": 1}, "limits the number of switches to 1"),
        ({"gpu_type": "h100"}, "no node of its partition"),
        ({"cpus": 40}, "no node of its partition"),
        ({"cpus": 1, "cpus_per_gpu": 10}, "no node of its partition"),
        ({"memory_mib": 70_000}, "no node of its partition"),
        ({"excluded_nodes": ("n1", "n2")}, "no node of its partition"),
        ({"tmp_mib": 9_000}, "no node of its partition"),
        ({"other_gres": (("nvme", 3),)}, "no node of its partition"),
        ({"other_gres": (("nvme", 1), ("nvme:slow", 1))}, "no node of its partition"),
        ({"scattered_gres": "nvme:1"}, "not counted by node \\(nvme:1\\)"),
        ({"contiguous": True}, "--contiguous"),
    ],
)
def test_what_is_not_modelled_is_left_to_slurm(asks: dict[str, Any], why: str) -> None:
    import re

    seen = look(record(5, reason="Resources", natives=(100,), **asks), record(6, natives=(50,)))
    assert re.search(why, seen.unmodelled[5])
    left, usual = sorted(seen.snapshot.jobs, key=lambda job: job.job_id)
    assert not left.eligible
    assert not left.may_displace
    assert left.peers != usual.peers
    assert left.native_priority == 100
    plan = catalog.build("fifo").plan(seen.snapshot)
    assert [start.job_id for start in plan.starts] == [6]


def test_a_lease_or_a_pin_of_ours_is_no_obstacle() -> None:
    assert unmodelled(record(5, reservation="explsched_5"), Topology(), 0) == ""
    pinned = record(5, required_nodes=("n1",), admin_comment="explsched-group:node=n1&since=5")
    assert unmodelled(pinned, Topology(), 0) == ""
    for note in ("node=n2&since=5", "pause=99999999", "group=2&of=4"):
        chosen = record(5, required_nodes=("n1",), admin_comment=f"explsched-group:{note}")
        assert "certain nodes" in unmodelled(chosen, Topology(), 0)


def test_a_job_with_more_shards_than_a_gpu_has_is_left_to_slurm() -> None:
    """Slurm takes them of one GPU of a node, and never starts the job."""
    node = SlurmNode("n1", "IDLE", 4, frozenset({"main"}), shards=16)
    asks: dict[str, Any] = {"gpus": 0, "gpus_per_node": None, "reason": "Resources"}
    jobs = tuple(record(shards, shards_per_node=shards, **asks) for shards in (1, 4, 5, 16))
    seen = observe(ClusterRecords((node,), jobs, ()), ProgressSpool(Path("/nowhere")), NOW_S)
    assert set(seen.unmodelled) == {5, 16}
    assert seen.unmodelled[5] == "it asks for more shards than one GPU has (5, of 4)"
    assert {job.job_id for job in seen.snapshot.jobs if job.eligible and job.may_displace} == {1, 4}


def test_below_how_many_switches_a_job_is_can_be_told_of_a_tree() -> None:
    """With topology/block, and without a network, it is left to Slurm. For such a job nobody is preempted."""
    few = record(5, reason="Resources", natives=(100,), nodes=2, gpus=8, most_switches=1)
    tree = Topology(dict.fromkeys(("n1", "n2"), (Switch("s1"),)))
    for topology in (tree, Topology(dict.fromkeys(("n1", "n2"), (Switch("b1", 2), Switch("all blocks")))), Topology()):
        nodes = (node("n1"), node("n2"))
        seen = observe(ClusterRecords(nodes, (few,), (), topology=topology), ProgressSpool(Path("/nowhere")), NOW_S)
        assert (5 in seen.unmodelled) is (topology is not tree)
        assert seen.snapshot.jobs[0].eligible is (topology is tree)
        assert not seen.snapshot.jobs[0].may_displace
    assert seen.snapshot.jobs[0].request.most_switches == 1


@pytest.mark.parametrize(
    "needs",
    [
        {"features": "big&nvlink"},
        {"features": "huge|big"},
        {"gpu_type": "h100"},
        {"cpus": 40},
        {"memory_mib": 100_000},
        {"excluded_nodes": ("n1", "n7")},
        {"tmp_mib": 9_000},
        {"other_gres": (("nvme", 3), ("nvme:fast", 3))},
    ],
)
def test_a_job_is_planned_on_nodes_that_have_what_it_asks_for(needs: dict[str, Any]) -> None:
    types = frozenset({"h100"})
    disks = {"tmp_mib": 10_000, "other_gres": (("nvme", 4), ("nvme:fast", 4))}
    big = node("n2", cpus=64, memory_mib=256_000, features=frozenset({"nvlink", "big"}), gpu_types=types, **disks)
    seen = look(record(5, **needs), record(6), nodes=(node("n1"), big))
    assert seen.unmodelled == {}
    plan = catalog.build("fifo").plan(seen.snapshot)
    assert {start.job_id: start.placement[0].node for start in plan.starts} == {5: "n2", 6: "n1"}


@pytest.mark.parametrize(
    ("asks", "is_resized"),
    [
        ({}, True),
        ({"gpu_type": "h100"}, True),
        ({"gpu_type": "a100"}, False),
        ({"required_nodes": ("n1",)}, False),
        ({"exclusive": "NODE"}, False),
    ],
)
def test_a_running_job_is_resized_only_for_nodes_that_it_may_have(asks: dict[str, Any], *, is_resized: bool) -> None:
    """Half of n1 is another job's; n2 is idle, and has other GPUs."""
    half = {"state": "RUNNING", "start_s": NOW_S - 3000, "time_limit_s": 360_000.0, "node_names": ("n1",)}
    half |= {
        "gpus": 2,
        "gpus_per_node": 2,
        "gpu_nodes": (("n1", 2),),
        "comment": "explsched:elastic=1-4&checkpoint=USR1",
    }
    n1 = node("n1", gpu_types=frozenset({"a100" if asks.get("gpu_type") == "a100" else "h100"}))
    n2 = node("n2", gpu_types=frozenset({"h100"}))
    seen = look(record(5, **half, **asks), record(6, **{**half, "comment": ""}), nodes=(n1, n2))
    assert [resize.job_id for resize in catalog.build("explsched").plan(seen.snapshot).resizes] == [5] * is_resized
    assert seen.unmodelled == {}


def test_a_node_with_gpus_of_several_types_is_left_out_for_a_job_that_wants_one() -> None:
    mixed = node("n1", gpu_types=frozenset({"a100", "1g.10gb"}))
    asks = record(5, gpu_type="1g.10gb", excluded_nodes=("n2",))
    none, kept = "no node of its partition", "have GPUs of other types"
    uniform = node("n2", gpu_types=frozenset({"1g.10gb"}))
    for job, why in (
        (asks, kept),
        (replace(asks, excluded_nodes=("n1", "n2")), none),
        (replace(asks, cpus=40), none),
        (replace(asks, partition="other"), none),
        (replace(asks, gpu_type="h100"), none),
    ):
        assert why in look(job, nodes=(mixed, uniform)).unmodelled[5], job
    assert not look(replace(asks, excluded_nodes=()), nodes=(mixed, uniform)).unmodelled


def test_jobs_that_the_same_nodes_suit_are_planned_on_one_set_however_their_needs_differ() -> None:
    """Of one set for each amount of memory a pass takes minutes: pipelines ask for what their inputs need."""
    nodes = (node("n1"), node("n2", cpus_taken=8, memory_taken_mib=32_000), node("n3", memory_mib=9_000))
    asking = [record(5 + at, natives=(100,), memory_mib=10_000 + at) for at in range(3)]
    without = record(8, natives=(100,), memory_mib=10_000, excluded_nodes=("n1",))
    seen = look(*asking, without, record(9, natives=(100,)), nodes=nodes)
    sets = {job.job_id: job.partition for job in seen.snapshot.jobs}
    usable = {number: seen.snapshot.nodes.usable(name).tolist() for number, name in sets.items()}
    assert len({sets[5], sets[6], sets[7]}) == 1
    assert usable[5] == [True, True, False]
    assert usable[8] == [False, True, False]
    assert sets[9] == "main"


def test_a_job_of_several_partitions_is_planned_on_a_node_that_has_what_it_asks_for() -> None:
    """By the name of the first partition alone it would be planned on any of that one's nodes."""
    small = replace(node("n1", cpus=4), partitions=frozenset({"main"}))
    seen = look(record(5, partition="main,long", cpus=16, reason="Resources"), nodes=(small, node("n2")))
    plan = catalog.build("fifo").plan(seen.snapshot)
    assert [share.node for start in plan.starts for share in start.placement] == ["n2"]


def test_a_job_in_several_partitions_is_planned_on_the_nodes_of_all() -> None:
    one = SlurmNode("n1", "IDLE", 4, frozenset({"long"}))
    seen = look(record(5, partition="main,long"), nodes=(one,))
    plan = catalog.build("fifo").plan(seen.snapshot)
    assert [start.job_id for start in plan.starts] == [5]


def test_reservations_of_others_are_in_the_plan_and_leases_are_not() -> None:
    def starts(name: str, flags: frozenset[str] = frozenset(), start_s: float = NOW_S + 600) -> int:
        taken = SlurmReservation(name, start_s, start_s + 3600, ("n1", "n2"), (), flags)
        return len(catalog.build("fifo").plan(look(record(5), reservations=(taken,)).snapshot).starts)

    assert starts("maintenance") == 0
    assert starts("explsched_7") == 1
    assert starts("next-month", start_s=NOW_S + 1e6) == 1
    assert starts("always-near", frozenset({"TIME_FLOAT"}), NOW_S + 1e6) == 0


@pytest.mark.parametrize(
    ("state", "is_open"),
    [
        ("IDLE", True),
        ("MIXED+PLANNED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("MIXED+NOT_RESPONDING+POWERING_UP", True),
        ("IDLE+RESERVED", True),
        ("IDLE+MAINTENANCE+RESERVED", False),
        ("IDLE+POWER_DOWN", False),
        ("IDLE+CLOUD+POWERING_DOWN", False),
        ("MIXED+DRAIN", False),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+REBOOT_ISSUED", False),
        ("IDLE+INVALID_REG", False),
        ("DOWN", False),
        ("UNKNOWN", False),
    ],
)
def test_state_words_as_scontrol_prints_them(state: str, is_open: bool) -> None:  # noqa: FBT001  a case's values
    assert SlurmNode("n1", state, 4, frozenset()).schedulable is is_open


def test_nobody_leaves_a_node_that_the_job_excludes() -> None:
    """Job 2, which alone could make room, does not consent."""
    held = {"state": "RUNNING", "start_s": 1.0, "time_limit_s": 90_000.0, "cpus": 4, "memory_mib": 100}
    on_n1 = record(1, gpu_nodes=(("n1", 4),), node_names=("n1",), comment="explsched:checkpoint=USR1", **held)
    on_n2 = record(2, gpu_nodes=(("n2", 4),), node_names=("n2",), **held)
    asks = record(3, reason="Resources", natives=(100,), time_limit_s=60.0)
    for excluded, victims in (((), [1]), (("n1",), [])):
        seen = look(on_n1, on_n2, replace(asks, excluded_nodes=excluded))
        assert [gone.job_id for gone in catalog.build("srsf").plan(seen.snapshot).preemptions] == victims


@pytest.mark.parametrize(("victim", "is_enough"), [((("nvme", 1),), True), ((), False)])
def test_nobody_leaves_for_a_job_whose_generic_resource_another_one_keeps(
    victim: tuple[tuple[str, int], ...], *, is_enough: bool
) -> None:
    """Another job, perhaps without GPUs, has one of the two that the node has."""
    held = {"state": "RUNNING", "start_s": 1.0, "time_limit_s": 90_000.0, "comment": "explsched:checkpoint=USR1"}
    leaves = record(1, gpu_nodes=(("n1", 4),), node_names=("n1",), other_gres=victim, **held)
    asks = record(3, reason="Resources", natives=(100,), time_limit_s=60.0, other_gres=(("nvme", 1),))
    seen = look(leaves, asks, nodes=(node("n1", other_gres_taken=(("nvme", 2), ("nvme:fast", 2))),))
    plan = without_vain_preemptions(catalog.build("srsf").plan(seen.snapshot), seen)
    assert bool(plan.preemptions) is is_enough


def test_what_scontrol_says_of_a_node() -> None:
    line = (
        "NodeName=n1 CPUAlloc=3 CPUEfctv=14 CPUTot=16 CPULoad=0.1 AvailableFeatures=a,b ActiveFeatures=a "
        "Gres=gpu:a100:4(S:0-1),shard:16,nvme:fast:2,lane:4K GresDrain=N/A GresUsed=gpu:a100:2(IDX:0,2),nvme:fast:1,"
        "lane:0 RealMemory=64000 AllocMem=1000 FreeMem=5 State=MIXED TmpDisk=500 Partitions=main"
    )
    assert parse.node(line) == SlurmNode(
        "n1",
        "MIXED",
        4,
        frozenset({"main"}),
        shards=16,
        cpus=14,
        cpus_taken=3,
        memory_mib=64000,
        memory_taken_mib=1000,
        features=frozenset({"a"}),
        gpu_types=frozenset({"a100"}),
        other_gres=(("lane", 4096), ("nvme", 2), ("nvme:fast", 2)),
        other_gres_taken=(("lane", 0), ("nvme", 1), ("nvme:fast", 1)),
        tmp_mib=500,
    )


def test_a_constrained_job_displaces_consenting_jobs_on_suitable_nodes_only() -> None:
    """From Slurm's records to the changed plan: the job on the node without the feature is worse, and is left alone."""
    plain = node("n2", features=frozenset())
    held = {"state": "RUNNING", "start_s": 1.0, "comment": "explsched:checkpoint=USR1", "cpus": 4, "memory_mib": 100}
    fits = record(1, gpu_nodes=(("n1", 4),), node_names=("n1",), time_limit_s=50_000.0, **held)
    worse = record(2, gpu_nodes=(("n2", 4),), node_names=("n2",), time_limit_s=90_000.0, **held)
    picky = record(3, reason="Resources", natives=(100,), features="nvlink", time_limit_s=60.0, cpus=4, memory_mib=100)
    seen = look(fits, worse, picky, nodes=(node("n1"), plain))
    plan = without_vain_preemptions(catalog.build("srsf").plan(seen.snapshot), seen)
    assert [(gone.job_id, gone.beneficiary) for gone in plan.preemptions] == [(1, 3)]
    crowded = look(fits, worse, picky, nodes=(node("n1", cpus_taken=16, cpus=17), plain))
    assert [p.job_id for p in catalog.build("srsf").plan(crowded.snapshot).preemptions] == [1]
    left = look(fits, worse, replace(picky, cpus=6), nodes=(node("n1", cpus_taken=16, cpus=16), plain))
    assert without_vain_preemptions(catalog.build("srsf").plan(left.snapshot), left).preemptions == ()


def test_the_memory_that_a_constraint_names_is_asked_of_each_gpu() -> None:
    seen = look(
        record(5, features="a100-40g|a100-80g"),
        record(6, features="nvlink&gpumem80g"),
        record(7, features="nvlink"),
        nodes=(node("n1", features=frozenset({"a100-40g"})), node("n2", features=frozenset({"nvlink", "gpumem80g"}))),
    )
    asked = {job.job_id: job.request.gpu_memory_mib for job in seen.snapshot.jobs}
    assert asked == {5: 40 * 1024, 6: 80 * 1024, 7: 0}
    assert seen.unmodelled == {}
    plan = catalog.build("simple").plan(seen.snapshot)
    assert {start.job_id: start.placement[0].node for start in plan.starts} == {5: "n1", 6: "n2"}
