"""Elastic jobs: smaller where GPUs are scarce, larger where nobody wants them, never for nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from explsched.errors import PolicyError
from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.elastic import Resizing
from sched_policy.model import Absence, Elastic, Exploration, GpuRequest, Job, Node, NodeGpus
from sched_policy.plan import Plan, Resize
from sched_policy.policy import SchedulingPolicy
from sched_policy.snapshot import Snapshot
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Estimates, Settings
from simulation.results.outcome import JobRecord
from simulation.traces.trace import ClusterShape, Trace, TraceJob
from tests.sched_policy.builders import NOW_S, job, nodes, row, running, snapshot

OPTIONS = catalog.PolicyOptions(quantum_s=100.0, resize_restart_s=30.0, resize_gain=2.0)
FIFO = row("fifo", OPTIONS)
CONSENT = Exploration(checkpoint_signal="USR1")


def elastic(job_id: int, gpus: int, least: int, most: int, **fields: Any) -> Job:
    return job(job_id, request=GpuRequest.on_each(1, gpus), elastic=Elastic(least, most), **fields)


def holding(job_id: int, gpus: int, least: int, most: int, **fields: Any) -> Job:
    more = {"request": GpuRequest.on_each(1, gpus), "elastic": Elastic(least, most), "exploration": CONSENT}
    return running(job_id, "n1", gpus, **{**more, **fields})


def sizes(plan: Plan) -> dict[int, int]:
    return {resize.job_id: resize.request.total for resize in plan.resizes}


def planned(*jobs: Job, policy: SchedulingPolicy = FIFO, on: int = 1) -> Plan:
    return checked_plan(policy, snapshot(*jobs, on=nodes(on, 8)))


def test_a_job_that_does_not_fit_starts_with_the_most_that_does() -> None:
    plan = planned(running(1, "n1", 5), elastic(2, 8, 1, 8))
    assert sizes(plan) == {2: 2}
    assert [(start.job_id, start.placement) for start in plan.starts] == [(2, (NodeGpus("n1", 2),))]
    assert plan.reservations == ()


def test_tasks_of_an_array_keep_their_size() -> None:
    assert sizes(planned(running(1, "n1", 5), elastic(2, 8, 1, 8, array_tasks=3))) == {}
    assert sizes(planned(elastic(1, 2, 2, 8, array_tasks=2))) == {}


def test_it_waits_if_its_gpus_come_free_soon() -> None:
    soon = running(1, "n1", 7, ran_s=3600.0 - 100)  # 100 s x 1 GPU are less than 30 s x 8 GPUs
    assert sizes(planned(soon, elastic(2, 8, 1, 8))) == {}
    later = running(1, "n1", 7, ran_s=3600.0 - 300)
    assert sizes(planned(later, elastic(2, 8, 1, 8))) == {2: 1}


def test_no_size_at_which_the_time_limit_is_known_to_be_too_short() -> None:
    taken = running(1, "n1", 5)
    assert sizes(planned(taken, elastic(2, 8, 1, 8, expected_s=800.0))) == {2: 2}
    assert sizes(planned(taken, elastic(2, 8, 1, 8, expected_s=1000.0))) == {}  # 4000 s with 2 GPUs, limited to 3600 s


def test_a_smaller_start_delays_no_promise() -> None:
    taken = running(1, "n1", 4, ran_s=3000.0)
    gang = job(2, request=GpuRequest.on_each(1, 8))
    assert sizes(planned(taken, gang, elastic(3, 8, 1, 8))) == {}
    assert sizes(planned(taken, gang, elastic(3, 8, 1, 8, time_limit_s=500.0))) == {3: 4}


def test_a_waiting_job_grows_when_nobody_else_waits() -> None:
    assert sizes(planned(elastic(1, 2, 2, 8))) == {1: 8}
    # The better one is asked first; what it leaves goes to the next.
    assert sizes(planned(elastic(1, 2, 2, 4), elastic(2, 1, 1, 8))) == {1: 4, 2: 4}
    assert sizes(planned(elastic(1, 2, 2, 8), job(2, 6))) == {}


def test_a_running_job_grows_into_idle_gpus() -> None:
    plan = planned(holding(1, 2, 1, 8))
    assert sizes(plan) == {1: 8}
    assert plan.starts == ()


def test_what_a_growing_job_holds_already_is_not_taken_from_the_others() -> None:
    assert sizes(planned(holding(1, 2, 2, 4), holding(2, 2, 2, 8))) == {1: 4, 2: 4}


def test_a_job_grows_only_on_nodes_of_its_partition() -> None:
    by_nodes = job(1, request=GpuRequest.on_each(1, 8), elastic=Elastic(8, 16, 8))
    ours, theirs = Node("n1", 8, frozenset({"main"})), Node("n2", 8, frozenset({"other"}))
    assert sizes(checked_plan(FIFO, snapshot(by_nodes, on=(ours, theirs)))) == {}
    assert sizes(checked_plan(FIFO, snapshot(by_nodes, on=(ours, replace(theirs, partitions=ours.partitions))))) == {
        1: 16
    }


@pytest.mark.parametrize(("in_s", "larger"), [(3599.0, {}), (3600.0, {1: 8})])
def test_nothing_grows_into_a_reservation(in_s: float, larger: dict[int, int]) -> None:
    """Once the job has left, it has its whole limit of an hour again, and would wait for the end of the reservation."""
    reserved = [Absence(("n1",), NOW_S + in_s, NOW_S + 9e4)]
    runs = holding(1, 4, 4, 8, ran_s=1800.0)
    assert sizes(checked_plan(FIFO, Snapshot.of(NOW_S, nodes(1, 8), [runs], absences=reserved))) == larger
    on = (Node("n1", 8, frozenset({"main"})), Node("n2", 4, frozenset({"main"})))
    plan = checked_plan(FIFO, Snapshot.of(NOW_S, on, [elastic(1, 2, 2, 8)], absences=reserved))
    assert sizes(plan) == (larger or {1: 4})
    again = elastic(1, sizes(plan)[1], 2, 8)
    assert sizes(checked_plan(FIFO, Snapshot.of(NOW_S, on, [again], absences=reserved))) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"exploration": None},
        {"ran_s": 50.0},
        {"is_spared": True},
        {"asked_to_leave": True},
        {"time_limit_s": 1060.0},  # 60 s are left: it would save 45 s, which is less than two restarts
        {"first_report_s": NOW_S - 101, "ran_s": 3000.0, "time_limit_s": 3600.0},  # it took 2899 s to start
    ],
)
def test_a_running_job_is_left_alone_unless_it_pays(fields: dict[str, Any]) -> None:
    assert sizes(planned(holding(1, 2, 1, 8, **fields))) == {}


def test_a_running_job_is_left_alone_while_somebody_waits_or_makes_room() -> None:
    assert sizes(planned(holding(1, 2, 1, 8), job(2, 7), on=1)) == {}
    assert sizes(planned(holding(1, 2, 1, 8), running(2, "n1", 1, asked_to_leave=True))) == {}


def test_gpus_of_a_job_that_will_move_are_not_given_away_yet() -> None:
    """Job 1 wants a whole node and holds half of another; job 2 starts and could use that half."""
    moving = holding(1, 4, 4, 8, submit_s=0.0)
    beside = running(3, "n1", 2, submit_s=0.5)
    plan = planned(moving, beside, elastic(2, 2, 2, 8), on=2)
    assert sizes(plan) == {1: 8}
    assert [start.placement for start in plan.starts] == [(NodeGpus("n1", 2),)]


def test_a_job_of_several_nodes_grows_by_nodes() -> None:
    by_nodes = job(1, request=GpuRequest.on_each(1, 8), elastic=Elastic(8, 32, 8))
    plan = planned(by_nodes, on=3)
    assert [resize.request for resize in plan.resizes] == [GpuRequest.on_each(2, 8)]


def test_the_plan_is_looked_at_again_when_a_quantum_ends() -> None:
    young = holding(1, 2, 1, 8, ran_s=40.0)
    assert planned(young).replan_s == NOW_S + 60


def test_slurms_own_order_and_sharing_policies_resize_nobody() -> None:
    for name in ("slurm", "muri-l"):
        assert planned(elastic(1, 2, 2, 8), policy=catalog.build(name, OPTIONS)).resizes == ()


class Wrong:
    """A policy that resizes as it likes."""

    name, summary, needs_durations = "wrong", "", False

    def __init__(self, *resizes: Resize) -> None:
        self._resizes = resizes

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan(resizes=self._resizes)


@pytest.mark.parametrize(
    ("resize", "one", "words"),
    [
        (Resize(1, GpuRequest.on_each(1, 3), ""), elastic(1, 2, 1, 8), "did not offer"),
        (Resize(1, GpuRequest.on_each(1, 4), ""), job(1, 2), "did not offer"),
        (Resize(1, GpuRequest.on_each(1, 4), ""), holding(1, 2, 1, 8, exploration=None), "neither waits nor"),
        (Resize(9, GpuRequest.on_each(1, 4), ""), job(1, 2), "not in the snapshot"),
    ],
)
def test_a_resize_that_cannot_be_is_refused(resize: Resize, one: Job, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        planned(one, policy=Wrong(resize))


EXACT = Settings(interval_s=10, checkpoint_s=5, restart_s=20, estimates=Estimates.parse("exact"))
GREEDY = catalog.build("srsf", replace(OPTIONS, quantum_s=50.0))


def replayed(*jobs: TraceJob, policy: SchedulingPolicy = GREEDY, settings: Settings = EXACT) -> dict[int, JobRecord]:
    outcome = simulate(Trace.of(jobs), ClusterShape(1, 8), policy, settings)
    return {record.job_id: record for record in outcome.jobs}


def test_simulated_a_larger_job_is_faster() -> None:
    records = replayed(TraceJob(1, 0.0, 2, 800.0, least_gpus=1, most_gpus=8))
    assert (records[1].end_s, records[1].held_s, records[1].preemptions) == (200.0, 200.0, 0)
    assert records[1].spent_gpu_s == 1600
    half = replace(EXACT, scaling=0.5)
    assert replayed(TraceJob(1, 0.0, 2, 800.0, least_gpus=1, most_gpus=8), settings=half)[1].end_s == 400.0


def test_simulated_a_job_starts_smaller_and_grows_by_a_restart() -> None:
    taken = TraceJob(1, 0.0, 6, 1000.0)
    records = replayed(taken, TraceJob(2, 5.0, 8, 800.0, least_gpus=1, most_gpus=8))
    # From 10 s with 2 GPUs it does a quarter of its work per second, until the other one ends at 1000 s. Then it saves
    # for 5 s, starts at the interval after that, loads for 20 s, and does the rest with all 8.
    assert records[2].start_s == 10
    assert records[2].preemptions == 1
    assert records[2].end_s == pytest.approx(1010 + 20 + 800 - 990 / 4)
    assert records[2].spent_gpu_s == pytest.approx(2 * (1005 - 10) + 8 * (records[2].end_s - 1010))


def test_simulated_elasticity_never_starves_the_others() -> None:
    jobs = [TraceJob(i, 7.0 * i, 2 ** (i % 4), 100.0 + 13 * i, least_gpus=1, most_gpus=8) for i in range(1, 12)]
    jobs += [TraceJob(i, 7.0 * i, 2 ** (i % 4), 100.0 + 13 * i) for i in range(12, 24)]
    for name in ("fifo", "srsf", "tiresias", "explsched"):
        records = replayed(*jobs, policy=catalog.build(name, OPTIONS))
        assert {str(record.ending) for record in records.values()} == {"completed"}


def test_bounds_of_the_rule_are_per_plan() -> None:
    rule = replace(FIFO, resize=Resizing(30.0, 2.0, 100.0, most_at_once=1))
    two = [holding(1, 1, 1, 4), replace(holding(2, 1, 1, 4), allocation=(NodeGpus("n1", 1),))]
    assert len(planned(*two, policy=rule).resizes) == 1
