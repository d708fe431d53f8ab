"""Nodes that are somebody else's for a time: no start runs into it, and nobody is preempted there."""

from __future__ import annotations

import pytest

from sched_policy import catalog
from sched_policy.model import Absence, GpuPart, Job, NodeGpus, StageProfile
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


def placed(policy: str, absence: Absence, **fields: object) -> list[str]:
    """The nodes on which a job of one GPU starts."""
    waiting = job(1, 1, profile=StageProfile(1.0, 0.2, 0.5, 0.3), part=GpuPart(0.5, 1.0, 0.5), **fields)
    found = catalog.build(policy).plan(Snapshot.of(NOW_S, nodes(2), [waiting], absences=[absence]))
    return [share.node for start in found.starts for share in start.placement]


@pytest.mark.parametrize("policy", catalog.POLICIES.names())
def test_no_policy_uses_a_node_that_is_somebody_elses_now(policy: str) -> None:
    assert placed(policy, Absence(("n1",), NOW_S - 60, NOW_S + 600)) == ["n2"]
    assert placed(policy, Absence(("n1",), NOW_S - 60, NOW_S)) == placed(policy, Absence((), NOW_S, NOW_S))


@pytest.mark.parametrize("policy", catalog.POLICIES.names())
def test_no_policy_has_a_job_run_into_a_reservation(policy: str) -> None:
    later = Absence(("n1", "n2"), NOW_S + 600, NOW_S + 4200)
    assert placed(policy, later, time_limit_s=601.0) == []
    assert placed(policy, later, time_limit_s=600.0) != []


def test_jobs_on_a_node_that_is_somebody_elses_now_keep_their_gpus() -> None:
    """Nobody else could use them."""
    stages = {"profile": StageProfile(1.0, 0.0, 1.0, 0.0), "exploration": EXPLORING}
    here = running(1, "n1", 4, time_limit_s=9e4, allocation=(NodeGpus("n1", 4, (0, 1, 2, 3)),), **stages)
    shorter = job(2, 4, time_limit_s=60.0, **stages)
    assert plan("explsched-share", here, shorter, absences=()).preemptions != ()
    assert (
        plan("explsched-share", here, shorter, absences=(Absence(("n1",), NOW_S - 60, NOW_S + 600),)).preemptions == ()
    )


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
