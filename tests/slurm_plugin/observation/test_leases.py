"""Leases that keep nodes for a job in vain come to an end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from slurm_plugin.client.changes import CreateReservation, SetGres
from slurm_plugin.client.records import SlurmReservation
from slurm_plugin.observation.lease_use import LONGEST_LEASE_S, LeaseUse
from tests.slurm_kit import record
from tests.slurm_plugin.steering.test_reconcile import lease

JOB = record(5)
START_S = 20_000.0
BEGUN = replace(lease(5, START_S), end_s=START_S + 1e6)


def passes(use: LeaseUse, leases: tuple[SlurmReservation, ...], *now_s: float) -> list[bool]:
    return [bool(use.in_vain([JOB], leases, each_s)) for each_s in now_s]


def test_a_lease_counts_from_its_beginning() -> None:
    times_s = (START_S - 10_000, START_S, START_S + LONGEST_LEASE_S / 2, START_S + LONGEST_LEASE_S)
    assert passes(LeaseUse(), (BEGUN,), *times_s) == [False, False, False, True]


def test_a_new_daemon_counts_what_the_last_one_did() -> None:
    assert passes(LeaseUse(), (BEGUN,), START_S + LONGEST_LEASE_S) == [True]


def test_renewed_and_replaced_leases_count_together_and_pauses_do_not() -> None:
    use = LeaseUse()
    assert passes(use, (BEGUN,), START_S + LONGEST_LEASE_S - 1) == [False]
    assert passes(use, (), START_S + 10 * LONGEST_LEASE_S) == [False]
    again = replace(BEGUN, start_s=START_S + 10 * LONGEST_LEASE_S)
    assert passes(use, (again,), again.start_s + 1) == [True]
    assert passes(use, (), START_S + 20 * LONGEST_LEASE_S) == [True]


def test_a_job_that_started_is_forgotten() -> None:
    use = LeaseUse()
    assert passes(use, (BEGUN,), START_S + LONGEST_LEASE_S) == [True]
    assert use.in_vain([replace(JOB, state="RUNNING")], (BEGUN,), START_S + LONGEST_LEASE_S + 1) == frozenset()
    assert passes(use, (), START_S + LONGEST_LEASE_S + 2) == [False]


@pytest.mark.parametrize("named", ["explsched_5", "explsched_5,", "course,explsched_5"])
def test_a_lease_that_other_jobs_were_put_into_is_used_up(named: str) -> None:
    use = LeaseUse()
    intruder = record(6, reservation=named)
    assert use.in_vain([replace(JOB, reservation="explsched_5"), intruder], (BEGUN,), START_S - 100) == {5}
    assert passes(use, (), START_S) == [True]


@pytest.mark.parametrize(
    "change",
    [
        {"features": "fast"},
        {"gpus": 8, "nodes": 2},
        {"cpus": 64},
        {"partition": "big"},
        {"required_nodes": ("n9",)},
        {"required_nodes": ("n9",), "admin_comment": "explsched-group:pause=99999999"},
    ],
)
def test_a_lease_whose_job_asks_for_something_else_by_now_is_used_up(change: dict[str, Any]) -> None:
    """Slurm would start it before everybody's, on nodes where others are before it."""
    create = CreateReservation("explsched_5", START_S, 2, ("n1",), ("ada",), "main")
    changed = replace(JOB, reservation="explsched_5", **change)
    noted, adopted = LeaseUse(), LeaseUse()
    noted.note([create], {5: JOB})
    assert passes(adopted, (BEGUN,), START_S - 100) == [False]
    for use in (noted, adopted):
        assert use.in_vain([changed], (BEGUN,), START_S - 90) == {5}
        assert use.in_vain([JOB], (), START_S - 80) == {5}  # it gets no other


def test_a_lease_outlives_what_changes_while_its_job_waits_and_a_new_size_from_us() -> None:
    use = LeaseUse()
    create = CreateReservation("explsched_5", START_S, 2, ("n1",), ("ada",), "main")
    use.note([create], {5: JOB})
    waits = replace(JOB, reservation="explsched_5", reason="None", priority=7, site_factor=6, admin_comment="x")
    assert use.in_vain([waits], (BEGUN,), START_S - 90) == frozenset()
    use.note([SetGres(5, "gpu:2")], {5: waits})
    smaller = replace(waits, gpus=2, gpus_per_node=2)
    assert use.in_vain([smaller], (BEGUN,), START_S - 80) == frozenset()
    use.note([SetGres(5, "gpu:1"), create], {5: smaller})  # in one pass
    assert use.in_vain([replace(smaller, gpus=1, gpus_per_node=1)], (BEGUN,), START_S - 70) == frozenset()


def test_reservations_of_others_do_not_count() -> None:
    assert passes(LeaseUse(), (replace(BEGUN, name="maintenance"),), START_S + LONGEST_LEASE_S) == [False]


def test_a_lease_is_fresh_until_it_has_stood_for_a_while() -> None:
    use = LeaseUse()
    lease = SlurmReservation("explsched_5", 2000.0, 2120.0, ("n1",), ("ada",), frozenset())
    use.in_vain([], [lease], 1000.0)
    assert use.fresh(1000.0) == {5}
    use.in_vain([], [lease], 1059.0)
    assert use.fresh(1059.0) == {5}
    use.in_vain([], [lease], 1060.0)
    assert use.fresh(1060.0) == frozenset()
    use.in_vain([], [replace(lease, nodes=("n2",))], 1061.0)
    assert use.fresh(1061.0) == {5}
    use.in_vain([], [], 1200.0)
    assert use.fresh(1259.0) == {5}  # no other is made at once
    assert use.fresh(1260.0) == frozenset()
