"""Why a job waits: the gateway's forecast and the daemon go by one reading of Slurm's words."""

from __future__ import annotations

import pytest

from slurm_plugin.client import squeue
from slurm_plugin.client.wait_reason import WaitReason, wait_reason
from slurm_plugin.observation.standing import may_be_next, may_start
from tests.slurm_kit import record

NOW_S = 10_000.0
TIERS = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
MAINTENANCE = "ReqNodeNotAvail, Reserved for maintenance"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Resources", WaitReason.RESOURCES),
        ("Priority", WaitReason.PRIORITY),
        ("None", WaitReason.UNTESTED),
        ("", WaitReason.UNTESTED),
        (TIERS, WaitReason.TIER),
        (TIERS.replace(" ", "_"), WaitReason.TIER),
        (MAINTENANCE, WaitReason.RESERVED),
        (MAINTENANCE.replace(" ", "_"), WaitReason.RESERVED),
        ("ReqNodeNotAvail, May be reserved for other job", WaitReason.RESERVED),
        ("ReqNodeNotAvail, UnavailableNodes:held[1-2]", WaitReason.NODES),
        ("ReqNodeNotAvail", WaitReason.OTHER),
        ("Reservation", WaitReason.IN_RESERVATION),
        ("BeginTime", WaitReason.BEGIN),
        ("JobArrayTaskLimit", WaitReason.ARRAY_LIMIT),
        ("AssocGrpGRES", WaitReason.SIZE_LIMIT),
        ("QOSMaxCpuPerUserLimit", WaitReason.SIZE_LIMIT),
        ("MaxMemPerLimit", WaitReason.OTHER),
        ("QOSMaxJobsPerUserLimit", WaitReason.JOBS_LIMIT),
        ("JobHeldAdmin", WaitReason.HELD),
        ("JobHoldMaxRequeue", WaitReason.HELD),
        ("launch_failed_requeued_held", WaitReason.HELD),
        ("ResourcesOfTheFuture", WaitReason.OTHER),
    ],
)
def test_slurms_words(text: str, kind: WaitReason) -> None:
    assert wait_reason(text) is kind
    assert record(5, reason=text).waits_for is kind
    assert record(5, reason=text, state="RUNNING").waits_for is None
    assert record(5, reason=text).is_held is (kind is WaitReason.HELD)


@pytest.mark.parametrize("reason", ["Resources", "Priority", "None", TIERS, TIERS.replace(" ", "_")])
def test_what_only_room_keeps_from_starting_counts_for_the_gateways_forecast_and_the_daemon(reason: str) -> None:
    assert squeue.queued(f"5|main|100|PD|{reason}|N/A|1|60").ready
    assert may_start(record(5, reason=reason), NOW_S)
    assert not squeue.queued(f"5|main|100|R|{reason}|1000|1|60").ready


@pytest.mark.parametrize("reason", [MAINTENANCE, "Dependency", "JobHeldUser", "AssocGrpGRES", "BeginTime"])
def test_what_else_keeps_a_job_waiting_does_so_for_both(reason: str) -> None:
    assert not squeue.queued(f"5|main|100|PD|{reason}|N/A|1|60").ready
    assert not may_start(record(5, reason=reason), NOW_S)
    assert may_be_next(record(5, reason=reason), NOW_S) is (reason == MAINTENANCE)
