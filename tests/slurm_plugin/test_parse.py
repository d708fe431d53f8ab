"""What squeue and scontrol print, whatever users put into names and comments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explsched.errors import SlurmError
from sched_policy.model import Switch
from slurm_plugin.client import batch, capabilities, notation, parse, squeue
from slurm_plugin.client.changes import (
    SetAdminComment,
    TargetJob,
)
from slurm_plugin.client.records import Topology

RECORD = dict.fromkeys(squeue.JOB_FIELDS, "N/A") | {
    "JobID": "12",
    "ArrayJobID": "12",
    "UserID": "1000",
    "UserName": "ada",
    "Partition": "main",
    "State": "RUNNING",
    "Reason": "None",
    "PriorityLong": "17",
    "SubmitTime": "1700000000",
    "StartTime": "1700000100",
    "TimeLimit": "1-02:03:04",
    "MinTime": "00:10:00",
    "NumNodes": "2",
    "NumTasks": "2",
    "NumCPUs": "4",
    "tres-alloc": "cpu=4,mem=2000M,node=2,billing=4",
    "NodeList": "n[1-2]",
    "tres-per-node": "gres:gpu:a100:2,gres:shard:4",
    "RestartCnt": "1",
    "Name": "train",
    "Comment": "(null)",
}


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("gres:gpu:2", 2),
        ("gres:gpu", 1),
        ("gres:gpu:a100:2", 2),
        ("gres:gpu:a100", 1),
        ("gres/gpu:4", 4),
        ("gres/gpu=4", 4),
        ("gpu:8(S:0-1)", 8),
        ("gres:shard:3", 0),
        ("gres:gpu:1,gres:shard:2", 1),
        ("gres:gpu:a100:1,gres:gpu:h100:2", 3),
        ("gres/gpu:a100=2,gres/gpu=2", 2),
        ("gres/gpu=3,gres/gpu:a100=1,gres/gpu:h100=2", 3),
        ("gres/gpu=3,gres/gpu:a100=1,gres/shard=4", 3),
        ("gres/gpu:a100=1,gres/gpu:h100=2", 3),
        ("N/A", 0),
        ("", 0),
    ],
)
def test_gpu_counts(tres: str, gpus: int) -> None:
    assert notation.gpu_count(tres) == gpus


@pytest.mark.parametrize(
    ("told", "requeues"), [({}, True), ({"Requeue": "0"}, False), ({"BatchFlag": "0"}, False)], ids=str
)
def test_whether_slurm_would_requeue_a_job(told: dict[str, str], *, requeues: bool) -> None:
    """Allocations of salloc and srun have Requeue=1, too, but Slurm requeues batch jobs only."""
    of_batch = {"Requeue": "1", "BatchFlag": "1"}
    assert squeue.job(list((RECORD | of_batch | told).values())).requeues == requeues


@pytest.mark.parametrize(("printed", "preempted"), [("N/A", False), ("1700000000", True)])
def test_whether_slurm_ends_a_job_for_another(printed: str, *, preempted: bool) -> None:
    assert squeue.job(list((RECORD | {"State": "COMPLETING", "PreemptTime": printed}).values())).preempted is preempted


@pytest.mark.parametrize("state", ["EXPEDITING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"])
def test_a_job_that_waits_in_another_state_has_not_ended(state: str) -> None:
    assert squeue.job(list((RECORD | {"State": state, "NodeList": "(null)"}).values())).state == "PENDING"


@pytest.mark.parametrize("state", ["PD", "SE", "RH", "RD"])
def test_a_job_of_the_queue_waits_in_other_states_too(state: str) -> None:
    """It has a start all the same: Slurm's estimate."""
    found = squeue.queued(f"7|main|900|{state}|Resources|1700000100|2|1:00:00")
    assert (found.ready, found.start_s) == (True, None)


def test_a_running_job() -> None:
    job = squeue.job(list(RECORD.values()))
    assert (job.gpus, job.gpus_per_node, job.gpu_nodes) == (4, 2, (("n1", 2), ("n2", 2)))
    assert job.time_limit_s == 86400 + 2 * 3600 + 3 * 60 + 4
    assert job.least_limit_s == 600
    assert (job.submit_s, job.start_s, job.restarts, job.comment) == (1.7e9, 1.7e9 + 100, 1, "")


@pytest.mark.parametrize("begin", ["200000000000", "9223372036854775807"])
def test_a_job_that_may_begin_in_the_far_future_is_read_all_the_same(begin: str) -> None:
    """Its owner may give any time; a job that is left out counts as ended."""
    absurd = {"State": "PENDING", "StartTime": begin, "EligibleTime": begin, "AccrueTime": begin}
    job = squeue.job([*(RECORD | absurd).values()])
    assert job.eligible_s == job.accrue_s == 1e11
    assert notation.clock(job.eligible_s).startswith("5138-")


@pytest.mark.parametrize(
    ("state", "tres", "nodes"),
    [
        ("PENDING", "cpu=4,mem=2000M,node=3,billing=4", 3),  # what squeue shows of it is its last run's
        ("PENDING", "N/A", 2),
        ("RUNNING", "cpu=4,mem=2000M,node=3,billing=4", 2),
    ],
)
def test_a_requeued_job_asks_for_what_it_was_changed_to(state: str, tres: str, nodes: int) -> None:
    job = squeue.job(list((RECORD | {"State": state, "tres-alloc": tres}).values()))
    assert (job.nodes, job.gpus) == (nodes, 2 * nodes)


@pytest.mark.parametrize(
    ("fields", "shards"),
    [
        ({"tres-per-node": "gres:shard:1"}, 1),
        ({"tres-per-node": "gres/shard:a100:3"}, 3),
        ({"tres-per-node": "N/A", "tres-per-task": "gres:shard:2", "NumTasks": "4"}, 4),
        ({"tres-per-node": "gres:gpu:1"}, 0),
    ],
)
def test_shards_on_each_node(fields: dict[str, str], shards: int) -> None:
    assert squeue.job(list((RECORD | fields).values())).shards_per_node == shards


@pytest.mark.parametrize(
    ("release", "plain", "exclusive", "of_user"),
    [("22.05.8", "OK", "NO", "USER"), ("24.11.7", "OK", "NO", "USER"), ("26.05.3", "NO", "NODE", "USER")],
)
def test_who_shares_his_nodes_with_nobody(release: str, plain: str, exclusive: str, of_user: str) -> None:
    """As printed of jobs without --exclusive, with it, and with --exclusive=user."""
    names = squeue.field_names(capabilities.SlurmVersion.read(release))
    place = squeue.JOB_FIELDS.index("OverSubscribe")

    def read(said: str) -> str:
        printed = list(RECORD.values())
        printed[place] = said
        return squeue.job(printed, names).exclusive

    assert [read(said) for said in (plain, exclusive, of_user)] == ["", "NODE", "USER"]


def test_what_was_read_by_the_names_of_another_release_is_read_anew() -> None:
    """An upgrade in the midst of a pass: what says NO is another field already, and nobody has asked which release."""
    printed = "\x1f".join((RECORD | {"OverSubscribe": "NO"}).values())
    reader, found = squeue.JobReader(), []
    for release in ("25.11.7", "26.05.3", "26.05.3"):
        reader.begin("\x1f", squeue.field_names(capabilities.SlurmVersion.read(release)))
        found.append(reader.job(printed).exclusive)
    assert found == ["NODE", "", ""]


@pytest.mark.parametrize(
    ("state", "used", "suspended_s"),
    [
        ("RUNNING", "1:00:01", 0.0),  # squeue counts a moment longer
        ("RUNNING", "59:59", 0.0),
        ("RUNNING", "40:00", 1200.0),
        ("SUSPENDED", "0:10", 3590.0),
        ("COMPLETING", "50:00", 600.0),
        ("PENDING", "0:00", 0.0),
        ("RUNNING", "INVALID", 0.0),
    ],
)
def test_suspended_time_is_what_slurm_leaves_out_of_a_run(state: str, used: str, suspended_s: float) -> None:
    began = int(RECORD["StartTime"])
    reader, found = squeue.JobReader(), []
    for told, asked_s in ((used, began + 3600.7), ("0:10", began + 10.2), (used, began + 3600.7)):
        reader.begin("\x1f", asked_s=asked_s)
        found.append(reader.job("\x1f".join((RECORD | {"State": state, "TimeUsed": told}).values())).suspended_s)
    assert found == [suspended_s, 0.0, suspended_s]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"tres-per-node": "gres:gpu:2,gres:nvme:1"}, ((("nvme", 1),), "", 0, False)),
        ({"tres-per-node": "gres/nvme:fast:2,gres/shard:1"}, ((("nvme", 2), ("nvme:fast", 2)), "", 0, False)),
        ({"tres-per-task": "cpu:4,gres/gpu:1,gres/nvme:1,license/x:1"}, ((), "nvme:1", 0, False)),
        ({"MinTmpDisk": "5G", "Contiguous": "1"}, ((), "", 5120, True)),
        ({"MinTmpDisk": "1500M", "Contiguous": "0"}, ((), "", 1500, False)),
        ({"MinTmpDisk": "0", "tres-per-node": "gres:none"}, ((), "", 0, False)),
    ],
)
def test_what_a_job_asks_of_its_nodes_beside_gpus(told: dict[str, str], found: tuple[object, ...]) -> None:
    job = squeue.job(list((RECORD | {"tres-per-node": "N/A"} | told).values()))
    assert (job.other_gres, job.scattered_gres, job.tmp_mib, job.contiguous) == found


@pytest.mark.parametrize(
    ("told", "memory_mib"),
    [
        ({}, 8 * 500),  # DefMemPerCPU
        ({"MinMemory": "600M", "tres-alloc": "cpu=1,mem=600M,node=1"}, 600),  # --mem
        ({"NumCPUs": "2", "tres-alloc": "cpu=2,mem=1000M,node=1"}, 8 * 500),
        ({"NumCPUs": "2", "MinMemory": "1G", "tres-alloc": "cpu=2,mem=2G,node=1"}, 8 * 1024),  # --mem-per-cpu
        ({"NumCPUs": "2", "MinMemory": "1G", "tres-alloc": "cpu=2,mem=1G,node=1"}, 1024),  # --mem
        ({"mem-per-tres": "gres:gpu:250", "tres-alloc": "cpu=1,mem=500M,node=1"}, 500),  # --mem-per-gpu
        ({"Partition": "long,main"}, 500),  # its default is by node
        ({"cpus-per-tres": "N/A"}, 500),
        ({"State": "RUNNING"}, 500),
    ],
)
def test_memory_of_a_job_with_cpus_per_gpu_is_that_of_all_its_cpus(told: dict[str, str], memory_mib: int) -> None:
    partitions = "PartitionName=main A=B DefMemPerNode=UNLIMITED\nPartitionName=long A=B DefMemPerNode=500 C=D\n"
    default = parse.memory_by_cpu({"DefMemPerCPU": "500"}, partitions)
    one = {"NumNodes": "1", "NumCPUs": "1", "tres-alloc": "cpu=1,mem=500M,node=1", "MinMemory": "500M"}
    asks = {"State": "PENDING", "tres-per-node": "gres:gpu:2", "cpus-per-tres": "gres:gpu:4"}
    job = squeue.job(list((RECORD | one | asks | told).values()))
    assert squeue.with_memory_of_cpus(job, default).memory_mib == memory_mib


def test_default_memory_of_partitions() -> None:
    told = "PartitionName=a X=1 DefMemPerCPU=700 Y=2\nPartitionName=b X=1 DefMemPerCPU=UNLIMITED\nPartitionName=c X=1\n"
    assert parse.memory_by_cpu({"DefMemPerCPU": "UNLIMITED"}, told) == {"": 0, "a": 700, "b": 0}


def test_tiers_of_partitions() -> None:
    told = "PartitionName=a X=1 PriorityJobFactor=7 PriorityTier=10 Y=2\nPartitionName=b X=1\n"
    assert parse.tiers(told) == {"a": 10}


@pytest.mark.parametrize(("line", "nodes"), [("7|n[1-2],m1", ("n1", "n2", "m1")), ("7|", ())])
def test_nodes_that_a_job_excludes(line: str, nodes: tuple[str, ...]) -> None:
    assert squeue.exclusion(line) == (7, nodes)


def test_nodes_asked_for_and_our_note() -> None:
    record = RECORD | {"State": "PENDING", "ReqNodes": "n[2-3]", "admin_comment": "explsched:pause=5"}
    job = squeue.job(list(record.values()))
    assert (job.required_nodes, job.admin_comment, job.node_names) == (("n2", "n3"), "explsched:pause=5", ())


def test_a_node_with_shards() -> None:
    line = "NodeName=n1 Gres=gpu:a100:4(S:0-1),shard:a100:16(S:0-1) State=IDLE Partitions=main"
    assert (parse.node(line).gpus, parse.node(line).shards) == (4, 16)


def test_pins_and_notes_are_one_safe_command() -> None:
    assert batch.command(TargetJob(7, ("n1",), "explsched:node=n1&since=5")) == (
        "update JobId=7 ReqNodeList=n1 AdminComment=explsched:node=n1&since=5"
    )
    assert batch.command(TargetJob(7, (), "")) == "update JobId=7 ReqNodeList= AdminComment="
    assert batch.command(SetAdminComment(7, "explsched:pause=5")) == "update JobId=7 AdminComment=explsched:pause=5"
    for hostile in ("a b", "a\nshutdown", 'a"b'):
        assert not batch.fits_a_line(SetAdminComment(7, hostile))
        with pytest.raises(SlurmError):
            batch.command(SetAdminComment(7, hostile))
    assert batch.arguments(TargetJob(7, ("n1",), "a b")) == ["update", "JobId=7", "ReqNodeList=n1", "AdminComment=a b"]


def test_total_gpus_are_spread_over_the_nodes() -> None:
    record = RECORD | {"tres-per-node": "N/A", "tres-per-job": "gres:gpu:3"}
    assert squeue.job(list(record.values())).gpu_nodes == (("n1", 2), ("n2", 1))
    record = RECORD | {"tres-per-node": "N/A", "tres-per-task": "gres:gpu:1", "NumTasks": "4"}
    assert squeue.job(list(record.values())).gpus == 4


@pytest.mark.parametrize(
    ("name", "uid", "user"), [("ada", "1000", "ada"), ("nobody", "1000", "1000"), ("nobody", "65534", "nobody")]
)
def test_users_without_a_name_on_this_host_are_told_apart(name: str, uid: str, user: str) -> None:
    assert squeue.job(list((RECORD | {"UserName": name, "UserID": uid}).values())).user == user


def test_a_job_that_shares_no_node_holds_all_gpus_of_its_nodes() -> None:
    one = RECORD | {"tres-per-node": "N/A", "tres-per-job": "gres:gpu:1"}
    sizes = {"n1": 4, "n2": 8}
    for said, gpu_nodes in (("NO", (("n1", 4), ("n2", 8))), ("OK", (("n1", 1),)), ("USER", (("n1", 1),))):
        job = squeue.with_whole_nodes(squeue.job(list((one | {"OverSubscribe": said}).values())), sizes)
        assert (job.gpus, job.gpu_nodes) == (1, gpu_nodes)
    waits = squeue.job(list((one | {"State": "PENDING", "OverSubscribe": "NO"}).values()))
    assert squeue.with_whole_nodes(waits, sizes) == waits


def test_a_waiting_array() -> None:
    record = RECORD | {"State": "PENDING", "ArrayTaskID": "2-9%2", "NodeList": "", "StartTime": "N/A"}
    job = squeue.job(list(record.values()))
    assert (job.array_tasks, job.array_job_id, job.gpu_nodes, job.start_s) == (8, 12, (), None)
    without = squeue.job(list((record | {"ArrayTaskID": "2-9"}).values()))
    assert (job.array_limit, without.array_limit) == (2, None)


@pytest.mark.parametrize("shown", ["7", "7%2"])
def test_the_last_waiting_task_of_an_array_is_addressed_as_a_task(shown: str) -> None:
    """The throttle is shown where the other tasks were cancelled; `JobId=12` would be the running ones, too."""
    job = squeue.job(list((RECORD | {"State": "PENDING", "ArrayTaskID": shown}).values()))
    assert (job.array_tasks, job.array_job_id, job.array_task_id) == (1, 12, 7)


@pytest.mark.parametrize("field", ["tres-per-job", "tres-per-task", "tres-per-socket"])
def test_gpus_asked_for_in_two_ways(field: str) -> None:
    """`--gpus-per-node=4 --gpus-per-task=1`: Slurm refuses to change the number per node."""
    record = RECORD | {"State": "PENDING", "tres-per-node": "gres:gpu:4"}
    assert not squeue.job(list(record.values())).scattered_gpus
    assert squeue.job(list((record | {field: "gres:gpu:1"}).values())).scattered_gpus


@given(name=st.text(max_size=40), comment=st.text(max_size=40))
def test_no_free_text_breaks_a_record(name: str, comment: str) -> None:
    records = [RECORD | {"Name": name, "Comment": comment}, RECORD]
    text = "".join("\x1fabcf".join(record.values()) + "\x1fabcr\n" for record in records)
    first, second = (squeue.job(record.split("\x1fabcf")) for record in squeue.records(text, "\x1fabcr"))
    assert first.name == name
    assert first.uid == 1000
    assert second.name == "train"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,7],m", ["n1", "n2", "n3", "n7", "m"]),
        ("a[01-02]b[1-2]", ["a01b1", "a01b2", "a02b1", "a02b2"]),
        ("n[009-011]", ["n009", "n010", "n011"]),
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    assert list(notation.expand_hosts(text)) == hosts


@pytest.mark.parametrize(
    ("text", "seconds"), [("10:00", 600), ("1:00:00", 3600), ("2-00:00:00", 172800), ("UNLIMITED", None), ("0:30", 30)]
)
def test_durations(text: str, seconds: float | None) -> None:
    assert notation.duration_s(text) == seconds


def test_sdiag_without_its_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match="thread count"):
        parse.load("nothing")


@pytest.mark.parametrize(("told", "first"), [("5", 5), ("N/A", None), ("0", None)])
def test_the_components_of_a_heterogeneous_job_name_their_first_one(told: str, first: int | None) -> None:
    assert squeue.job(list((RECORD | {"HetJobID": told}).values())).het_job_id == first


def test_priorities_without_the_site_factor() -> None:
    text = (
        "  7|1000|0|0|0|1000|0|0|0||0\n"
        "8|900|-100|0|0|1000|0|0|0||0\n"
        "9|1200|700|0|0|0|0|500|0||0\n9|800|700|0|0|0|0|100|0||0\n"
    )
    found = parse.priorities(text)
    assert found[7] == parse.Priority(0, (1000,), fair_share=1000)
    assert found[8] == parse.Priority(-100, (1000,), fair_share=1000)
    assert found[9] == parse.Priority(700, (500, 100))  # two partitions


NOW_S = 1_800_000_000.0
SETTINGS = {"PriorityWeightAge": "1000", "PriorityMaxAge": "1-00:00:00", "PriorityCalcPeriod": "00:05:00"}


def test_how_far_slurm_is_behind_with_an_age() -> None:
    rule = parse.AgeRule.of(SETTINGS)
    assert rule is not None
    assert rule.lag(499, NOW_S - 43_200, NOW_S) == 1
    assert rule.lag(1000, NOW_S - 200_000, NOW_S) == 0  # age counts no more from a day on
    assert rule.lag(0, NOW_S + 60, NOW_S) == 0
    assert rule.lag(300, NOW_S - 43_200, NOW_S) == 0  # no period explains so much: its age is not what is assumed
    assert rule.lag(600, NOW_S - 43_200, NOW_S) == 0


def test_rounding_is_no_lag() -> None:
    assert parse.by_one_clock({1: 1, 2: 0, 3: 1}) == {}
    assert parse.by_one_clock({1: 90, 2: 89, 3: 0, 4: 40}) == {1: 90, 2: 90, 3: 0, 4: 40}
    assert parse.by_one_clock({}) == {}


@pytest.mark.parametrize(
    "missing",
    [
        {"PriorityWeightAge": "0"},
        {"PriorityMaxAge": "UNLIMITED"},
        {"PriorityCalcPeriod": "00:00:00"},
        {"PriorityWeightAge": "(null)"},
        {"PriorityMaxAge": ""},
    ],
)
def test_where_age_counts_nothing_slurm_is_never_behind(missing: dict[str, str]) -> None:
    assert parse.AgeRule.of({**SETTINGS, **missing}) is None
    assert parse.AgeRule.of({}) is None


def test_a_priority_below_the_floor_is_added_up_from_its_parts() -> None:
    """Slurm shows 1 whatever lies below: then the difference would be no priority of anybody's."""
    found = parse.priorities("8|1|-5000|300|10|400|20|30|40|cpu=5,gres/gpu=45|50\n9|1|0|0|0|0|0|0|0||3000\n")
    assert found[8].natives == (800,)
    assert found[9].natives == (-3000,)


def test_a_priority_that_an_operator_has_set_has_no_parts() -> None:
    """As sprio 22.05 prints it, in one partition and in two. Of new jobs all parts may be 0, too."""
    not_set = "8|1|-2147483648|0|0|0|0|{of_partition}|0||-2147483648\n"
    text = "7|500|0|0|0|0|0|0|0||0\n" + not_set.format(of_partition=40) + not_set.format(of_partition=0)
    found = parse.priorities(text + "9|1|0|0|0|0|0|0|0||0\n10|2|0|0|0|0|0|0|0||0\n")
    assert found[7] == found[8] == parse.Priority(None, (), None)
    assert (found[9].natives, found[10].natives) == ((0,), (2,))


def test_a_backfill_cycle_under_way_is_seen() -> None:
    page = "sdiag output at Fri Nov 27 15:32:01 2026 (1795793521)\nServer thread count:  3\n\n"
    page += "Backfilling stats{}\n\tLast cycle: 4000000\n"
    page += "\tLast cycle when: Mon Nov 23 13:01:34 2026 (1795438894)\n"
    warning = " (WARNING: data obtained in the middle of backfilling execution.)"
    assert parse.load(page.format(warning)).backfills
    assert parse.load(page.format(warning)).backfill_began_s == 1795438894.0
    assert not parse.load(page.format("")).backfills
    assert parse.load(page.format("")).time_s == 1795793521.0


TREE = """\
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1,3]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[2,4-5]
SwitchName=root Level=1 LinkSpeed=1 Nodes=n[1-5] Switches=s[1-2]

"""
"""Of topology/tree in 22.05, 24.11, 25.11 and 26.05; of topology.yaml in the last two with LinkSpeed=0."""
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n[1,3] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[2,4] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4

"""
"""Of topology/block in 24.11, 25.11 and 26.05."""


def names(shown: str) -> dict[str, tuple[str, ...]]:
    return {node: tuple(switch.name for switch in above) for node, above in parse.topology(shown).items()}


def test_switches_above_each_node() -> None:
    s1, s2 = ("s1", "root"), ("s2", "root")
    expected = {"n1": s1, "n3": s1, "n2": s2, "n4": s2, "n5": s2}
    assert names(TREE) == names(TREE.replace("LinkSpeed=1", "LinkSpeed=0")) == expected


def test_blocks_say_which_gangs_they_hold() -> None:
    found = parse.topology(BLOCKS)
    assert found["n1"] == (Switch("b1", 2), Switch("b[1-2]", 4), Switch("all blocks"))
    assert found["n4"] == (Switch("b2", 2), Switch("b[1-2]", 4), Switch("all blocks"))


def test_a_branch_of_a_tree_may_be_shorter() -> None:
    text = """\
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n2
SwitchName=middle Level=1 LinkSpeed=1 Nodes=n1 Switches=s1
SwitchName=root Level=2 LinkSpeed=1 Nodes=n[1-2] Switches=middle,s2
"""
    assert names(text) == {"n1": ("s1", "middle", "root"), "n2": ("s2", "s2", "root")}


@pytest.mark.parametrize(
    "shown",
    [
        "X=0 Y=0 Z=0 Nodes=n1",
        TREE.replace("n[1,3]", "n[1-3]"),  # n2 has two leaf switches
        TREE.replace("Level=1", "Level=one"),
        TREE.replace("n[1,3]", "n[1-9999999]"),
        "\n",
        "No topology information available",
    ],
)
def test_a_network_that_is_not_understood_is_not_known(shown: str) -> None:
    found = parse.network(shown, "", is_respected=True)
    assert found.fault
    assert not found.switches


def test_without_a_topology_plugin_all_nodes_are_equally_near() -> None:
    assert parse.network("", "", is_respected=False) == parse.network("\n", "", is_respected=False) == Topology()


def test_a_topology_that_only_topology_yaml_names_counts() -> None:
    """Slurm 25.11 and 26.05 then say TopologyPlugin = topology/flat."""
    assert parse.network(TREE, "", is_respected=False).switches.keys() == {"n1", "n2", "n3", "n4", "n5"}


def test_partitions_with_topologies_of_their_own_are_left_to_slurm() -> None:
    shown = "PartitionName=main Nodes=n[1-4] State=UP\nPartitionName=racked PreemptMode=OFF Topology=racks State=UP\n"
    assert parse.network(TREE, shown, is_respected=True).fault == "partition racked has a topology of its own (racks)"
    assert not parse.network(TREE, shown.replace(" Topology=racks", ""), is_respected=True).fault
