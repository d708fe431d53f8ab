"""Leases, which Slurm puts before all other jobs, put no user before another."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from sched_policy.model import Node
from sched_policy.plan import Plan
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.changes import AttachReservation, Change, DeleteReservation
from slurm_plugin.client.records import SlurmJob, SlurmReservation
from slurm_plugin.observation.lease_use import LeaseUse
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.steering.leases import lease_changes
from tests.sched_policy.builders import NOW_S
from tests.slurm_kit import record
from tests.slurm_plugin.steering.test_reconcile import SLACK_S, lease, promise, seen


class Counted(dict[int, int]):
    """Site factors that count how often a job's is looked up."""

    lookups = 0

    def __contains__(self, job_id: object) -> bool:
        self.lookups += 1
        return super().__contains__(job_id)


PLAN = Plan(reservations=(promise(5),))
GONE = (AttachReservation(5, ""), DeleteReservation("explsched_5"))


def gets_one(*others: SlurmJob, **fields: Any) -> bool:
    return bool(lease_changes(PLAN, seen(record(5, **fields), *others), SLACK_S))


@pytest.mark.parametrize(
    "asked",
    [
        {"array_tasks": 4},
        {"exclusive": "NODE"},
        {"partition": "main,other"},
        {"gpus": 1, "gpus_per_node": 1},
        {"gpus": 0, "gpus_per_node": None},
        {"reason": "None"},
        {"reason": "ReqNodeNotAvail, May be reserved for other job"},  # by this very lease
    ],
)
def test_no_job_has_a_lease_while_another_users_is_before_it(asked: dict[str, Any]) -> None:
    """Whatever that one asks for: the plan may not have it, and Slurm would give it the next node."""
    first = record(6, user="bob", priority=9, **asked)
    assert not gets_one(first)
    assert gets_one(replace(first, priority=1))  # submitted later
    assert gets_one(replace(first, user="ada"))
    held = record(5, reservation="explsched_5")
    fresh = replace(seen(held, first, leases=(lease(5),)), known=Remembered(fresh_leases=frozenset({5})))
    assert lease_changes(PLAN, fresh, SLACK_S) == GONE
    assert lease_changes(Plan(), fresh, SLACK_S) == GONE


@pytest.mark.parametrize(
    "other",
    [
        {"partition": "other"},
        {"reason": "JobHeldUser", "priority": 0},
        {"reason": "QOSMaxGRESPerUser"},
        {"reason": "BeginTime", "eligible_s": NOW_S + 100},
        {"state": "RUNNING", "reason": ""},
    ],
)
def test_jobs_that_could_not_take_its_nodes_by_now_keep_no_job_from_its_lease(other: dict[str, Any]) -> None:
    assert gets_one(record(6, **{"user": "bob", "priority": 9} | other))


MAINTENANCE = SlurmReservation("upgrade", NOW_S + 1800, NOW_S + 9000, ("n1", "n2"), ("root",), frozenset({"MAINT"}))


@pytest.mark.parametrize(
    ("asked", "maintenance", "is_made"),
    [
        ({}, {}, True),  # a job of an hour
        ({"reason": "Priority"}, {}, True),
        ({"time_limit_s": None}, {}, True),
        ({}, {"start_s": NOW_S - 60}, True),
        ({}, {"start_s": NOW_S + 9000, "flags": frozenset({"MAINT", "TIME_FLOAT"})}, True),
        ({}, {"nodes": ("n1",)}, False),
        ({"nodes": 2}, {"nodes": ("n1",)}, True),
        ({"time_limit_s": 1800.0}, {}, False),
        ({"least_limit_s": 600.0}, {}, False),
        ({"reservation": "upgrade"}, {}, False),
        ({}, {"start_s": NOW_S - 60, "end_s": NOW_S - 1}, False),
        ({}, {"flags": frozenset({"SPEC_NODES"})}, False),
    ],
)
def test_a_job_that_cannot_end_before_maintenance_keeps_no_job_from_its_lease(
    asked: dict[str, Any], maintenance: dict[str, Any], *, is_made: bool
) -> None:
    """It counts where it might start: with a shorter time, on other nodes, or where only a part may be reserved."""
    reserved = {"reason": "ReqNodeNotAvail, Reserved for maintenance"}
    first = record(6, user="bob", priority=9, **(reserved | asked))
    there = seen(record(5, time_limit_s=60.0), first, leases=(replace(MAINTENANCE, **maintenance),))
    two = Snapshot.of(NOW_S, tuple(Node(name, 4, frozenset({"main"})) for name in ("n1", "n2")), ())
    assert bool(lease_changes(PLAN, replace(there, snapshot=two), SLACK_S)) == is_made


@pytest.mark.parametrize(("maintained", "is_made"), [("n9", False), ("n2", True)])
def test_nodes_that_are_down_are_not_kept_for_maintenance(maintained: str, *, is_made: bool) -> None:
    """With a maintenance elsewhere a job that needs one for a moment counted as kept out by it."""
    first = record(6, user="bob", priority=9, nodes=2)
    there = seen(record(5, time_limit_s=60.0), first, leases=(replace(MAINTENANCE, nodes=(maintained,)),))
    main, other = frozenset({"main"}), frozenset({"other"})
    nodes = Node("n1", 4, main), Node("n2", 4, main, schedulable=False), Node("n9", 4, other)
    assert bool(lease_changes(PLAN, replace(there, snapshot=Snapshot.of(NOW_S, nodes, ())), SLACK_S)) == is_made


def test_another_users_job_may_be_before_it_in_another_partition_of_the_same_nodes() -> None:
    """Or wait for another kind of node in its own: its owner could change which kind it needs once it has the lease."""
    shared = (Node("n1", 4, frozenset({"main", "other"})), Node("n2", 4, frozenset({"main"})))
    for asked in ({"partition": "other"}, {"features": "h100"}):
        there = seen(record(5), record(6, user="bob", priority=9, **asked))
        assert lease_changes(PLAN, replace(there, snapshot=Snapshot.of(NOW_S, shared, ())), SLACK_S) == ()


@pytest.mark.parametrize(
    ("partition", "tiers", "is_made"),
    [
        ("other", {"main": 1, "other": 1}, True),
        ("other", {"main": 1, "other": 2}, False),
        ("other", {"main": 3, "other": 2}, True),
        ("other", {"other": 2}, False),
        ("other", {}, True),
        ("far,main", {"far": 2, "main": 1}, True),  # of a higher tier on nodes that the other job does not use
    ],
)
def test_a_job_is_before_it_by_the_tier_of_its_partition(
    partition: str, tiers: Mapping[str, int], *, is_made: bool
) -> None:
    """Slurm compares tiers first, then priorities."""
    nodes = (("n1", {"main", "other"}), ("n2", {"main"}), ("n3", {"far"}))
    shared = tuple(Node(name, 4, frozenset(partitions)) for name, partitions in nodes)
    first = record(6, user="bob", partition=partition, priority=1, reason="Resources")
    there = replace(seen(record(5, priority=9), first), snapshot=Snapshot.of(NOW_S, shared, ()))
    there = replace(there, cluster=replace(there.cluster, tiers=tiers))
    assert bool(lease_changes(PLAN, there, SLACK_S)) == is_made
    of_owner = replace(there, jobs={**there.jobs, 6: replace(first, user="ada")})
    assert lease_changes(PLAN, of_owner, SLACK_S) != ()


def test_the_name_of_a_lease_that_has_expired_is_taken_from_its_job_at_once() -> None:
    """Slurm does not start a job that names a reservation which is not there; the job gets no lease for a minute."""
    there = seen(record(5, priority=9, reservation="explsched_5"))
    there = replace(there, known=Remembered(fresh_leases=frozenset({5})))
    assert lease_changes(PLAN, there, SLACK_S) == (AttachReservation(5, ""),)


def test_the_fresh_lease_of_a_job_that_has_ended_is_removed() -> None:
    there = replace(seen(leases=(lease(5),)), known=Remembered(fresh_leases=frozenset({5})))
    assert lease_changes(Plan(), there, SLACK_S) == (DeleteReservation("explsched_5"),)


def test_who_is_before_whom_is_told_by_the_site_factors_that_are_about_to_be_written() -> None:
    first = record(6, user="bob", priority=9, natives=(9,))
    own = record(5, priority=5, natives=(5,))
    assert lease_changes(PLAN, seen(own, first), SLACK_S, {5: 10}) != ()
    assert lease_changes(PLAN, seen(own, first), SLACK_S, {5: 10, 6: 20}) == ()


def test_jobs_of_others_on_other_nodes_cost_each_lease_nothing() -> None:
    ours = [record(number) for number in range(1, 301)]
    others = [record(1000 + number, user="bob", priority=9, partition="other") for number in range(3000)]
    plan, factors = Plan(reservations=tuple(promise(job.job_id) for job in ours)), Counted()
    assert len(lease_changes(plan, seen(*ours, *others), SLACK_S, factors)) == 600
    assert factors.lookups < 2 * (len(ours) + len(others))


def test_a_lease_that_was_removed_is_not_made_again_at_once() -> None:
    """Jobs of others come and go, and every change of a reservation disturbs backfill."""
    use, own = LeaseUse(), record(5)

    def wanted(leases: tuple[SlurmReservation, ...], *others: SlurmJob) -> tuple[Change, ...]:
        use.in_vain([own], leases, NOW_S)
        known = Remembered(fresh_leases=use.fresh(NOW_S))
        return lease_changes(PLAN, replace(seen(own, *others, leases=leases), known=known), SLACK_S)

    assert DeleteReservation("explsched_5") in wanted((lease(5),), record(6, user="bob", priority=9))
    assert wanted(()) == ()
