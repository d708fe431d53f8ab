"""Nodes that are somebody else's for a time: no start runs into it, and nobody is preempted there."""

from __future__ import annotations

from sched_policy.model import Absence, Job
from sched_policy.plan import Plan
from sched_policy.snapshot import Snapshot
from tests.sched_policy.builders import EXPLORING, NOW_S, job, nodes, row, running


def plan(policy: str, *jobs: Job, absences: tuple[Absence, ...], count: int = 1) -> Plan:
    return row(policy).plan(Snapshot.of(NOW_S, nodes(count), jobs, absences=absences))


def test_a_job_that_would_run_into_a_reservation_waits_for_its_end() -> None:
    maintenance = Absence(("n1",), NOW_S + 600, NOW_S + 4200)
    long, short = job(1, 4, time_limit_s=3600.0), job(2, 4, time_limit_s=500.0)
    found = plan("fifo", long, short, absences=(maintenance,))
    assert [start.job_id for start in found.starts] == [2]
    assert [(one.job_id, one.start_s) for one in found.reservations] == [(1, NOW_S + 4200)]


def test_other_nodes_are_used_meanwhile() -> None:
    found = plan("fifo", job(1, 4), absences=(Absence(("n1",), NOW_S - 60, NOW_S + 600),), count=2)
    assert [share.node for start in found.starts for share in start.placement] == ["n2"]


def test_nobody_is_preempted_on_a_node_that_is_somebody_elses_now() -> None:
    victim = running(1, "n1", 4, exploration=EXPLORING)
    short = job(2, 4, time_limit_s=60.0)
    assert plan("srsf", victim, short, absences=(Absence(("n1",), NOW_S - 60, NOW_S + 600),)).preemptions == ()
    assert plan("srsf", victim, short, absences=(Absence(("n1",), NOW_S - 60, NOW_S),)).preemptions != ()


def test_jobs_on_the_node_go_on_and_unknown_nodes_do_no_harm() -> None:
    gone = Absence(("n1", "other"), NOW_S - 60, NOW_S + 9000)
    found = plan("fifo", running(1, "n1", 4), job(2, 4), absences=(gone,))
    assert found.starts == ()
    assert [one.start_s for one in found.reservations] == [NOW_S + 9000]
