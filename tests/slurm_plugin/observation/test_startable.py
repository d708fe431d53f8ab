"""What may be done for a waiting job, by the reason that Slurm gives."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_plugin.observation.standing import may_be_planned, may_keep_lease, waits_for_room
from tests.slurm_kit import record

NOW_S = 10_000.0
MAINTENANCE = "ReqNodeNotAvail, Reserved for maintenance"
TIERS = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def planned(*, allows_preemption: bool = False, only_leases: bool = False, **fields: Any) -> bool:
    permitted = {"allows_preemption": allows_preemption, "only_leases": only_leases}
    return may_be_planned(record(5, **fields), NOW_S, **permitted, returns_at_once=False)


@pytest.mark.parametrize("reason", ["Resources", "Priority"])
def test_for_a_job_that_waits_for_room_all_may_be_done(reason: str) -> None:
    job = record(5, reason=reason)
    assert waits_for_room(job)
    assert may_keep_lease(job)
    assert planned(reason=reason)


@pytest.mark.parametrize(
    "reason",
    [
        *("PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "PartitionInactive", "MaxMemPerLimit"),
        *("ReqNodeNotAvail, UnavailableNodes:n1", MAINTENANCE, "Licenses", "BurstBufferResources", "Reservation"),
        *("MaxGRESPerAccount", "QOSMaxGRESPerUser", "AssocGrpGRES", "AssocGrpCPUMinutesLimit", "QOSGrpNodeLimit"),
        *("JobHeldUser", "JobHoldMaxRequeue", "Dependency", "JobArrayTaskLimit", "BadConstraints", "InvalidQOS"),
        *("NodeDown", "PowerNotAvail", "MaxPoweredUpNodes", "AReasonOfTheFuture"),
    ],
)
def test_for_any_other_reason_nothing_is(reason: str) -> None:
    job = record(5, reason=reason)
    assert not waits_for_room(job)
    assert not may_keep_lease(job)
    assert not planned(reason=reason)


def test_a_job_that_slurm_has_not_tested_is_planned_and_no_more() -> None:
    """Every write of ours makes the reason None, that of a job over its partition's limit, too."""
    untested = record(5, reason="None")
    assert not waits_for_room(untested)
    assert planned(reason="None")
    assert may_keep_lease(untested)


def test_a_job_may_wait_in_its_lease_for_the_beginning() -> None:
    assert may_keep_lease(record(5, reason="Reservation", reservation="explsched_5"))
    assert not may_keep_lease(record(5, reason="Reservation", reservation="explsched_6"))
    assert planned(reason="Reservation", reservation="explsched_5")


def test_the_components_of_a_heterogeneous_job_are_left_to_slurm() -> None:
    """One of them may wait for resources while another cannot start."""
    component = record(5, reason="Resources", het_job_id=4)
    assert not waits_for_room(component)
    assert not may_keep_lease(component)
    assert not planned(reason="Resources", het_job_id=4)


def test_where_tiers_hide_the_reason_a_job_is_planned_and_no_more() -> None:
    assert planned(reason=TIERS)
    assert planned(reason=TIERS.replace(" ", "_"))
    assert not waits_for_room(record(5, reason=TIERS))


def test_what_our_own_pin_brings_about_does_not_end_it() -> None:
    """Slurm says so of all but the first of those that wait for one node by name."""
    keeps = "ReqNodeNotAvail, UnavailableNodes:n1"
    assert planned(reason=keeps, required_nodes=("n1",), admin_comment="explsched-group:node=n1&since=5")
    assert not planned(reason=keeps, required_nodes=("n1",), admin_comment="of the site")
    assert not planned(reason=keeps, admin_comment="explsched-group:group=2&of=4")


def test_what_only_a_lease_keeps_from_nodes_is_planned_and_no_more() -> None:
    assert planned(reason=MAINTENANCE, only_leases=True)
    assert not planned(reason="ReqNodeNotAvail, UnavailableNodes:n1", only_leases=True)
    assert not waits_for_room(record(5, reason=MAINTENANCE))


def test_a_running_job_waits_for_nothing() -> None:
    assert not waits_for_room(record(5, state="RUNNING", reason="None"))
    assert not may_keep_lease(record(5, state="RUNNING", reason="None"))
