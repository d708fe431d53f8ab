"""Elastic jobs that run smaller than they could are not ended by a time limit that was meant for more GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import Elastic, Exploration, GpuRequest, Job
from sched_policy.plan import Plan, Preemption, Stop
from sched_policy.snapshot import Snapshot
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Estimates, Settings
from simulation.traces.trace import ClusterShape, Trace, TraceJob
from tests.sched_policy.builders import NOW_S, job, nodes, row, running, snapshot

OPTIONS = catalog.PolicyOptions(quantum_s=100.0, resize_lead_s=180.0)
NEAR = {"ran_s": 3500.0, "time_limit_s": 3600.0}  # 100 s are left

BESIDE = (job(2, 8), running(3, "n1", 4, time_limit_s=None))  # one waits, so nobody grows, and its GPUs cannot be had


def small(**fields: Any) -> Job:
    more = {"request": GpuRequest.on_each(1, 2), "elastic": Elastic(1, 8)}
    return running(1, "n1", 2, **{**more, "exploration": Exploration(checkpoint_signal="USR1"), **NEAR, **fields})


def planned(*jobs: Job, policy: str = "tiresias") -> Plan:
    return checked_plan(catalog.build(policy, OPTIONS), snapshot(*jobs, on=nodes(1, 8)))


def leaves(*jobs: Job, policy: str = "tiresias") -> bool:
    return [preemption.job_id for preemption in planned(*jobs, policy=policy).preemptions] == [1]


@pytest.mark.parametrize("policy", ["fifo", "srsf", "tiresias", "explsched"])
def test_it_saves_before_its_limit_ends_it(policy: str) -> None:
    assert leaves(small(), *BESIDE, policy=policy)
    assert not leaves(small(ran_s=3400.0), *BESIDE, policy=policy)


@pytest.mark.parametrize(
    "fields",
    [
        {"exploration": None},
        {"is_spared": True},
        {"asked_to_leave": True},
        {"time_limit_s": None},
        {"elastic": None},
        {"elastic": Elastic(1, 2)},  # it has all that it can use: the limit is for this size
        {"expected_s": 3550.0},  # known to end in time
        {"ran_s": 150.0, "time_limit_s": 200.0},  # no time to work between two restarts
        {"first_report_s": NOW_S - 10.0},
        {"earlier_s": 4 * 3600.0},  # 2 of 8 GPUs for four limits: no more is meant by it
    ],
)
def test_it_is_left_alone(fields: dict[str, Any]) -> None:
    assert not leaves(small(**fields), *BESIDE)


def test_a_limit_that_leaves_no_quantum_to_work_brings_no_restarts() -> None:
    """The run works from its first report until it has to save: here for 140 s, and for 320 s."""
    as_long_as_saving = small(ran_s=300.0, time_limit_s=320.0)
    assert not leaves(as_long_as_saving, *BESIDE)
    assert leaves(replace(as_long_as_saving, time_limit_s=370.0), *BESIDE)
    long_quantum = catalog.build("tiresias", replace(OPTIONS, quantum_s=400.0))
    short_run = small(ran_s=400.0, time_limit_s=500.0)
    assert checked_plan(long_quantum, snapshot(short_run, *BESIDE, on=nodes(1, 8))).preemptions == ()
    assert leaves(short_run, *BESIDE)


def test_a_job_that_grows_is_not_asked_twice() -> None:
    far = small(time_limit_s=1e6, ran_s=1000.0)
    assert [resize.job_id for resize in planned(far).resizes] == [1]
    assert planned(replace(far, elastic=None)).preemptions == ()


class StopsAll:
    """An early stop that ends every running job."""

    def stops(self, snapshot: Snapshot) -> tuple[Stop, ...]:
        return tuple(Stop(each.job_id, "") for each in snapshot.running)


class DisplacesAll:
    """A preemption rule that asks every running job to go."""

    quantum_s = 600.0

    def preemptions(self, snapshot: Snapshot, *_: object) -> tuple[Preemption, ...]:
        return tuple(Preemption(each.job_id, "for others") for each in snapshot.running)


def test_who_goes_anyhow_is_not_asked_to_save_besides() -> None:
    seen, rule = snapshot(small(), *BESIDE, on=nodes(1, 8)), row("tiresias", OPTIONS)
    assert [gone.job_id for gone in rule.plan(seen).preemptions] == [1]
    assert replace(rule, stop=StopsAll()).plan(seen).preemptions == ()
    assert [gone.reason for gone in replace(rule, preempt=DisplacesAll()).plan(seen).preemptions] == 2 * ["for others"]
    assert replace(rule, stop=StopsAll(), preempt=DisplacesAll()).plan(seen).preemptions == ()
    grows = planned(small(expected_s=1e5))
    assert [resize.job_id for resize in grows.resizes] == [1]
    assert grows.preemptions == ()


def test_the_plan_is_looked_at_again_when_a_limit_comes_near() -> None:
    young = small(ran_s=3000.0)
    assert planned(young, *BESIDE, policy="fifo").replan_s == NOW_S + 600.0 - 180.0
    assert planned(small(), *BESIDE, policy="fifo").replan_s > NOW_S  # it is due already


def test_simulated_nobody_is_lost_to_a_limit_meant_for_more_gpus() -> None:
    """Three quarters of the cluster are taken: one gets 2 GPUs, and needs four times as long as its owner thought."""
    taken = TraceJob(1, 0.0, 6, 60_000.0)
    small_ones = [TraceJob(i, 1.0, 8, 3000.0, time_limit_s=3600.0, least_gpus=1, most_gpus=8) for i in (2, 3)]
    told = Settings(interval_s=10, checkpoint_s=5, restart_s=20, estimates=Estimates.parse("limit"))
    policy = catalog.build("tiresias", OPTIONS)
    found = simulate(Trace.of([taken, *small_ones]), ClusterShape(1, 8), policy, told).jobs
    assert {str(record.ending) for record in found} == {"completed"}
    assert max(record.preemptions for record in found) >= 3
