"""Everything of ours goes, and nothing of others."""

from __future__ import annotations

import math

import pytest

from slurm_plugin.client.changes import (
    AttachReservation,
    Change,
    DelayStart,
    DeleteReservation,
    SetAdminComment,
    SetSiteFactor,
    StartAtOnce,
    TargetJob,
)
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmReservation
from slurm_plugin.observation.standing import SETTLE_S
from slurm_plugin.steering.reconcile import taken_back
from tests.sched_policy.builders import NOW_S
from tests.slurm_kit import NODES, record


def reservation(name: str) -> SlurmReservation:
    return SlurmReservation(name, 0.0, 100.0, ("n1",), ("ada",), frozenset())


def changes(*jobs: SlurmJob, reservations: tuple[SlurmReservation, ...] = (), **others: int) -> tuple[Change, ...]:
    parts = {int(name.removeprefix("job")): part for name, part in others.items()}
    return taken_back(ClusterRecords(NODES, jobs, reservations), parts, {}, None, NOW_S)


def test_site_factors_become_what_others_had_set() -> None:
    jobs = (record(5, site_factor=300), record(6, site_factor=1300), record(7, site_factor=40), record(8))
    assert changes(*jobs, job6=1000, job7=40) == (SetSiteFactor(5, 0), SetSiteFactor(6, 1000))


def test_only_waiting_jobs_whose_factor_is_known_are_written() -> None:
    assert changes(record(5, state="RUNNING", site_factor=300), record(6, site_factor=None)) == ()


def test_jobs_leave_our_leases_and_these_go() -> None:
    jobs = (record(5, reservation="explsched_5"), record(6, reservation="maintenance"))
    leases = (reservation("explsched_5"), reservation("maintenance"), reservation("explsched_of_hers"))
    assert changes(*jobs, reservations=leases) == (AttachReservation(5, ""), DeleteReservation("explsched_5"))


def test_our_words_leave_the_comment_and_others_stay() -> None:
    spent = "JS1:abc explsched-preemption:since=1&n=0&lost=0 explsched-group:group=5&of=2"
    jobs = (record(5, admin_comment=spent, state="RUNNING"), record(6, admin_comment="JS1:abc"))
    assert changes(*jobs) == (SetAdminComment(5, "JS1:abc"),)


@pytest.mark.parametrize("theirs", ['{"a":  "b\tc"}', "x\ny"])
def test_blanks_and_line_breaks_of_others_stay(theirs: str) -> None:
    job = record(5, admin_comment=f"{theirs} explsched-preemption:since=1&n=0&lost=0", state="RUNNING")
    assert changes(job, record(6, admin_comment=f"{theirs}\n")) == (SetAdminComment(5, theirs),)


def test_a_pin_of_ours_goes_and_a_node_that_its_owner_asked_for_stays() -> None:
    word = "explsched-group:node=n1&since=5"
    jobs = (
        record(5, admin_comment=word, required_nodes=("n1",)),
        record(6, admin_comment=word, required_nodes=("n2",)),
    )
    assert changes(*jobs) == (TargetJob(5, (), ""), SetAdminComment(6, ""))


def test_jobs_that_rest_may_start_and_others_begin_times_stay() -> None:
    spent = "explsched-preemption:since=1&n=1&lost=0"
    delayed = {"restarts": 1, "submit_s": NOW_S - 5000.0, "eligible_s": NOW_S + 300.0}
    fresh = delayed | {"submit_s": NOW_S - SETTLE_S / 2}
    comments = {"admin_comment": spent}
    jobs = (record(5, **comments, **delayed), record(6, **delayed), record(7, **comments, **fresh))
    wanted = [change for change in changes(*jobs) if isinstance(change, StartAtOnce | DelayStart)]
    assert wanted == [StartAtOnce(5), DelayStart(7, math.ceil(NOW_S + SETTLE_S / 2))]


def test_where_delays_are_recorded_no_other_one_is_taken_for_ours() -> None:
    spent = {"admin_comment": "explsched-preemption:since=1&n=1&lost=0", "restarts": 1, "submit_s": NOW_S - 5000.0}
    hers = record(5, **spent, eligible_s=NOW_S + 300.0)
    ours = record(6, eligible_s=NOW_S + 500.0)
    own_s = NOW_S + 100.0
    wanted = taken_back(ClusterRecords(NODES, (hers, ours), ()), {}, {}, {6: own_s}, NOW_S)
    assert [change for change in wanted if isinstance(change, StartAtOnce | DelayStart)] == [DelayStart(6, own_s)]
