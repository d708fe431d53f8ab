"""A plan that cannot be carried out, or that touches jobs that do not allow it, is refused and says why."""

from __future__ import annotations

import pytest
from msgspec import Struct
from msgspec.structs import replace

from explsched.errors import PolicyError
from sched_policy.checked import checked_plan
from sched_policy.model import Elastic, Exploration, GpuRequest, Job, JobState, NodeGpus
from sched_policy.plan import Group, Plan, Preemption, Reservation, Resize, Score, Start, Stop
from sched_policy.snapshot import Snapshot
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot

CONSENT = Exploration(checkpoint_signal="USR1")


class Fixed(Struct, frozen=True):
    """A policy that always plans the same."""

    made: Plan
    name: str = "fixed"
    summary: str = ""
    needs_durations: bool = False

    def plan(self, _snapshot: Snapshot) -> Plan:
        return self.made


def checked(plan: Plan, *jobs: Job) -> Plan:
    return checked_plan(Fixed(plan), snapshot(*jobs, on=nodes(2, 4)))


def starts(job_id: int, *shares: NodeGpus) -> Plan:
    return Plan(starts=(Start(job_id, shares, ""),))


def promises(job_id: int, start_s: float = NOW_S + 60, node: str = "n1") -> Plan:
    return Plan(reservations=(Reservation(job_id, (NodeGpus(node, 1),), start_s, start_s + 60, ""),))


def resizes(job_id: int, gpus: int) -> Plan:
    return Plan(resizes=(Resize(job_id, GpuRequest.on_each(1, gpus), ""),))


HELD = running(1, "n1", 3, exploration=CONSENT)
BESIDE = running(1, "n1", allocation=(NodeGpus("n1", 1, (0,)),))
ELASTIC = job(2, request=GpuRequest.on_each(1, 2), elastic=Elastic(1, 4))

RIGHT = [
    (starts(2, NodeGpus("n1", 1)), (HELD, job(2))),
    (starts(2, NodeGpus("n1", 1, (0,))), (BESIDE, job(2))),
    (starts(2, NodeGpus("n1", 4, (0, 1, 2, 3))), (BESIDE, job(2, 4))),
    (Plan(starts=2 * starts(2, NodeGpus("n2", 1)).starts), (job(2, array_tasks=2),)),
    (Plan(starts=2 * starts(2, NodeGpus("n2", 1)).starts), (job(2, array_tasks=3, throttled_tasks=1),)),
    (replace(resizes(2, 4), starts=starts(2, NodeGpus("n1", 4)).starts), (ELASTIC,)),
    (promises(2), (HELD, job(2))),
    (Plan(preemptions=(Preemption(1, ""),)), (HELD,)),
    (Plan(stops=(Stop(1, ""),)), (replace(HELD, exploration=Exploration(may_stop=True)),)),
    (Plan(stops=(Stop(2, ""),)), (job(2, exploration=Exploration(may_stop=True)),)),
    (Plan(scores=(Score(2, 1.0, ""),)), (job(2),)),
]


@pytest.mark.parametrize(("plan", "jobs"), RIGHT)
def test_a_plan_that_can_be(plan: Plan, jobs: tuple[Job, ...]) -> None:
    assert checked(plan, *jobs) is plan


WRONG = [
    (starts(9, NodeGpus("n1", 1)), (job(2),), "it starts job 9, which is not in the snapshot"),
    (promises(9), (job(2),), "it reserves for job 9, which is not"),
    (Plan(preemptions=(Preemption(9, ""),)), (HELD,), "it preempts job 9, which is not"),
    (Plan(groups=(Group((1, 9), ""),)), (HELD,), "it groups job 9, which is not"),
    (Plan(scores=(Score(9, 1.0, ""),)), (HELD,), "it scores job 9, which is not"),
    (starts(1, NodeGpus("n1", 3)), (HELD,), "it starts job 1, which does not wait"),
    (starts(2, NodeGpus("n1", 1)), (job(2, eligible=False),), "it starts job 2, which does not wait"),
    (Plan(starts=2 * starts(2, NodeGpus("n2", 1)).starts), (job(2),), "2 times, which has 1 task"),
    (starts(2, NodeGpus("n1", 2)), (job(2),), "it gives job 2 2 GPUs instead of 1"),
    (starts(2, NodeGpus("n1", 2)), (HELD, job(2, 2)), "5 GPUs of node n1, which has 4"),
    (starts(2, NodeGpus("n1", 2, (0, 1))), (HELD, job(2, 2)), "5 GPUs of node n1, which has 4"),
    (starts(2, NodeGpus("n9", 1)), (job(2),), "on node n9, which is not"),
    (promises(1), (HELD,), "it makes a reservation for job 1, which is not waiting"),
    (promises(2, start_s=float("inf")), (job(2),), "its reservation for job 2 starts at inf"),
    (promises(2, node="n9"), (job(2),), "it reserves node n9 for job 2, which is not"),
    (
        Plan(preemptions=(Preemption(1, ""),)),
        (running(1, "n1"),),
        "preempts job 1, which does not run or does not allow preemption",
    ),
    (
        Plan(preemptions=(Preemption(1, ""),)),
        (replace(HELD, is_spared=True),),
        "preempts job 1, which .* not allow preemption",
    ),
    (Plan(preemptions=(Preemption(1, ""),)), (replace(HELD, state=JobState.COMPLETING),), "which does not run"),
    (Plan(preemptions=(Preemption(2, ""),)), (job(2, exploration=CONSENT),), "which does not run"),
    (
        Plan(preemptions=(Preemption(1, "", 2),)),
        (HELD, job(2, may_displace=False)),
        "for job 2, which may not displace",
    ),
    (Plan(preemptions=(Preemption(1, "", 2),)), (HELD, running(2, "n1")), "for job 2, which may not displace"),
    (Plan(preemptions=(Preemption(1, "", 9),)), (HELD,), "for job 9, which may not displace"),
    (Plan(stops=(Stop(1, ""),)), (HELD,), "stops job 1, which does not allow that"),
    (Plan(stops=(Stop(1, ""),)), (running(1, "n1"),), "stops job 1, which does not allow that"),
    (Plan(stops=(Stop(2, ""),)), (job(2, exploration=Exploration()),), "stops job 2, which does not allow that"),
    (resizes(2, 3), (ELASTIC,), "to 3 GPUs, which it did not offer"),
    (resizes(2, 4), (replace(ELASTIC, array_tasks=2),), "which it did not offer"),
    (resizes(1, 4), (replace(HELD, elastic=Elastic(1, 4), exploration=None),), "neither waits nor may be preempted"),
    (Plan(resizes=2 * resizes(2, 4).resizes), (ELASTIC,), "it resizes job 2 2 times"),
]


@pytest.mark.parametrize(("plan", "jobs", "words"), WRONG)
def test_a_plan_that_cannot_be(plan: Plan, jobs: tuple[Job, ...], words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        checked(plan, *jobs)
    assert str(caught.value).startswith("policy 'fixed' returned an invalid plan: ")


def test_of_many_faults_the_first_are_named() -> None:
    with pytest.raises(PolicyError, match=r"\(and 2 more\)"):
        checked(Plan(stops=tuple(Stop(number, "") for number in range(11, 16))), HELD)
