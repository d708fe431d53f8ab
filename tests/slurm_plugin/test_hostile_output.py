"""Whatever Slurm's commands print, one odd record ends no pass and hides no other job."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_policy import catalog
from slurm_plugin.client import batch, parse, squeue
from slurm_plugin.client.capabilities import Capabilities, SlurmVersion
from slurm_plugin.client.changes import Change, CreateReservation
from slurm_plugin.client.parse import readable
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode, SlurmReservation
from slurm_plugin.config import Config
from slurm_plugin.observation.observe import observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.decide import Kept, changes, planned
from slurm_plugin.steering.preemption import PreemptionTracker
from slurm_plugin.steering.reconcile import SteeringLimits

NOW_S = 1_700_001_000.0
NODES = ("n1", "n2")
SQUEUE = dict.fromkeys(squeue.JOB_FIELDS, "N/A") | {
    "JobID": "12",
    "ArrayJobID": "12",
    "UserID": "1000",
    "UserName": "ada",
    "Account": "physics",
    "Partition": "main",
    "QOS": "normal",
    "State": "PENDING",
    "Reason": "Resources",
    "PriorityLong": "100",
    "SubmitTime": "1700000000",
    "EligibleTime": "1700000000",
    "TimeLimit": "1:00:00",
    "NumNodes": "2",
    "NumTasks": "2",
    "NumCPUs": "4",
    "tres-alloc": "cpu=4,mem=2000M,node=2,billing=4",
    "tres-per-node": "gres:gpu:4",
    "OverSubscribe": "OK",
    "RestartCnt": "0",
    "Requeue": "1",
    "Nice": "0",
    "Name": "train",
    "Comment": "explsched:checkpoint=USR1",
}
USUAL = SQUEUE | {"JobID": "13", "ArrayJobID": "13", "NumNodes": "1", "tres-alloc": "cpu=1,node=1"}
HOLDING = USUAL | {"JobID": "14", "State": "RUNNING", "NodeList": "n1", "StartTime": "1700000100"}
NODE = "NodeName={} State=MIXED Gres=gpu:4 Partitions=main CPUTot=64 CPUAlloc=4 RealMemory=64000 AllocMem=1000"
HUGE = "9" * 400
ODD = st.one_of(
    st.sampled_from(
        [
            "",
            "N/A",
            "(null)",
            "None",
            "Unknown",
            HUGE,
            "-" + HUGE,
            "1.234,5",
            "1,234",
            "٣",
            "²",
            "nan",
            "inf",
            "1e9",
            "n[1-999999999999]",
            "n[9-1]",
            "n[1-2",
            "[[]]",
            "gres:gpu:" + HUGE,
            "0-" + HUGE,
            "-1",
            "253402300800",
            "9223372036854775808",
            "PENDING,RUNNING",
            "CORP\\alice",
            "Jürgen Groß",
            "a b",
            "x" * 2_000,
        ]
    ),
    st.text(max_size=30),
    st.integers().map(str),
)


def one_pass(jobs: tuple[SlurmJob, ...], nodes: tuple[SlurmNode, ...], *held: SlurmReservation) -> list[Change]:
    """What passes of several policies change; each change is looked at as it would be given to scontrol."""
    wanted: list[Change] = []
    with tempfile.TemporaryDirectory() as spool:
        seen = observe(ClusterRecords(nodes, jobs, held), ProgressSpool(Path(spool)), NOW_S)
    for name in ("srsf", "explsched"):
        kept = Kept(PreemptionTracker(Config().preemption), {})
        wanted += changes(planned(catalog.build(name), seen), seen, SteeringLimits.of(Config()), kept).all
    for change in wanted:
        batch.refusal(change)
    return wanted


def jobs_of(*records: dict[str, str]) -> tuple[SlurmJob, ...]:
    return readable("squeue", squeue.job, [list(record.values()) for record in records])


def nodes_of(*lines: str) -> tuple[SlurmNode, ...]:
    return readable("scontrol show node", parse.node, lines)


PLAIN_NODES = nodes_of(*map(NODE.format, NODES))


@settings(deadline=None, max_examples=80)
@given(field=st.sampled_from(squeue.JOB_FIELDS), value=ODD)
def test_any_field_of_a_job(field: str, value: str) -> None:
    found = jobs_of(SQUEUE | {field: value}, HOLDING | {field: value, "JobID": "15"}, USUAL, HOLDING)
    assert {13, 14} <= {job.job_id for job in found}
    one_pass(found, PLAIN_NODES)


@pytest.mark.parametrize("count", [0, 1, len(squeue.JOB_FIELDS) - 1, len(squeue.JOB_FIELDS) + 1, 2 * len(SQUEUE)])
def test_fields_that_are_missing_or_doubled(count: int) -> None:
    fields = (list(SQUEUE.values()) * 2)[:count]
    found = readable("squeue", squeue.job, [fields, list(USUAL.values())])
    assert [job.job_id for job in found] == [13]


@pytest.mark.parametrize("record", ["", "\x1f", "12", "Resources\x1f100", "a\x1fb\x1fc\x1fd"])
def test_a_record_that_was_cut_off(record: str) -> None:
    reader = squeue.JobReader()
    for _ in range(2):  # the second time nothing of it may be known
        reader.begin("\x1f")
        found = readable("squeue", reader.job, [record, "\x1f".join(USUAL.values())])
        assert [job.job_id for job in found] == [13]


@settings(deadline=None, max_examples=80)
@given(key=st.sampled_from(["NodeName", "State", "Gres", "Partitions", "CPUTot", "CPUAlloc", "RealMemory"]), value=ODD)
def test_any_value_of_a_node(key: str, value: str) -> None:
    words = [f"{key}={value}" if word.startswith(f"{key}=") else word for word in NODE.format("n2").split()]
    nodes = nodes_of(NODE.format("n1"), " ".join(words), " ".join(words[1:]), " ".join(words * 2))
    assert nodes[0].name == "n1"
    one_pass(jobs_of(SQUEUE, USUAL, HOLDING), nodes)


@settings(deadline=None, max_examples=60)
@given(key=st.sampled_from(["ReservationName", "StartTime", "EndTime", "Nodes", "Users", "Flags"]), value=ODD)
def test_any_value_of_a_reservation(key: str, value: str) -> None:
    line = "ReservationName=r StartTime=1700000000 EndTime=1700009000 Nodes=n1 Users=bob Flags=MAINT"
    words = [f"{key}={value}" if word.startswith(f"{key}=") else word for word in line.split()]
    found = readable("scontrol show reservation", parse.reservation, [" ".join(words), " ".join(words[1:]), line])
    assert found
    one_pass(jobs_of(SQUEUE, USUAL, HOLDING), PLAIN_NODES, *found)


@settings(deadline=None, max_examples=40)
@given(at=st.integers(0, 10), value=ODD)
def test_any_field_of_sprio(at: int, value: str) -> None:
    usual = "13|1000|0|1|2|3|4|5|6|cpu=1|0"
    fields = usual.split("|")
    fields[at] = value
    found = parse.priorities("\n".join(["|".join(fields).replace("13|", "12|", 1), usual, "||", "", "12"]))
    assert 1000 in found[13].natives


SDIAG = """\
Server thread count: {0}
Agent queue size: {0}
Jobs pending: {0}
 Last cycle: {0}
Backfilling stats
 Last cycle: {0}"""


@pytest.mark.parametrize("value", ["", "0", "-1", "1.234", HUGE, "9" * 5000, "n/a"])
def test_any_number_of_sdiag(value: str) -> None:
    try:
        found = parse.load(SDIAG.format(value) + f"\n Last cycle when: today ({value})")
    except ValueError:  # the pass is given up, and the next one asks again
        assert len(value) > 20
    else:
        assert math.isfinite(found.last_cycle_s + found.backfill_last_cycle_s + found.backfill_began_s)


@pytest.mark.parametrize("value", ["", "x", "-1", HUGE, "9" * 5000])
@pytest.mark.parametrize(
    "text", ["bf_yield_interval={0},bf_interval={0}", "rl_enable,rl_bucket_size={0},rl_refill_rate={0}", "{0}"]
)
def test_any_setting(value: str, text: str) -> None:
    words = text.format(value)
    keys = ("SchedulerParameters", "SlurmctldParameters", "PriorityCalcPeriod", "PriorityWeightAge", "PriorityMaxAge")
    can = Capabilities(SlurmVersion(24, 11), dict.fromkeys(keys, words))
    assert can.backfill_yields_after_s >= 0
    assert can.backfill_interval_s >= 0
    assert can.priority_period_s > 0
    assert all(weight > 0 for weight in can.priority_weights.values())
    assert can.rate_limit() is None or can.rate_limit().requests(15.0) >= 0  # type: ignore[union-attr]
    assert parse.AgeRule.of(can.settings) is None


@settings(deadline=None, max_examples=40)
@given(user=st.one_of(st.sampled_from(["CORP\\alice", "Jürgen", "a b", "x=y", "u\nv", "-u", "'"]), st.text(max_size=9)))
def test_a_user_of_any_name_gets_a_lease_or_a_refusal_of_his_own(user: str) -> None:
    wanted = one_pass(jobs_of(SQUEUE | {"UserName": user}, HOLDING), PLAIN_NODES)
    leases = [change for change in wanted if isinstance(change, CreateReservation)]
    assert leases
    for lease in leases:
        refused = batch.refusal(lease)
        assert refused is not None or f"Users={user} " in batch.command(lease)
        assert refused is None or "\n" not in refused.message


def test_partitions_and_nodes_that_have_vanished() -> None:
    gone = SQUEUE | {"Partition": "gone"}
    nowhere = HOLDING | {"JobID": "16", "NodeList": "n7", "Partition": "gone"}
    found = jobs_of(gone, nowhere, USUAL, HOLDING)
    held = SlurmReservation("explsched_12", NOW_S, NOW_S + 120, ("n8",), ("ada",), frozenset())
    for nodes in (PLAIN_NODES, PLAIN_NODES[:1], ()):
        one_pass(found, nodes, held)


def test_a_node_that_lies_about_its_gpus() -> None:
    """More are held than it says it has."""
    few = nodes_of(NODE.format("n1").replace("gpu:4", "gpu:1"), NODE.format("n2").replace("gpu:4", "(null)"))
    one_pass(jobs_of(SQUEUE, USUAL, HOLDING), few)
