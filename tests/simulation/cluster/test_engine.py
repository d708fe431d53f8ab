"""The cluster simulator: a decision takes effect at an interval and costs what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explsched.errors import PolicyError
from sched_policy import catalog
from sched_policy.backfill import Backfill
from sched_policy.model import Exploration, JobState, NodeGpus
from sched_policy.order import Fifo
from sched_policy.plan import Plan, Preemption, Ranking, Start, Stop
from sched_policy.policy import Policy
from sched_policy.snapshot import Columns, EndedRun, Snapshot
from simulation import baselines
from simulation.cluster.engine import SimulationError, simulate
from simulation.cluster.settings import Estimates, PassTimes, Settings, SimulationSettingsError
from simulation.results.metrics import measure
from simulation.results.outcome import Ending, JobRecord, TraceOutcome
from simulation.traces.learning import Learning
from simulation.traces.trace import ClusterShape, Trace, TraceJob
from slurm_plugin.client.records import ShardRule
from tests.sched_policy.builders import row

ONE_GPU = ClusterShape(1, 1)
EXACT = Settings(interval_s=10, checkpoint_s=5, restart_s=20, estimates=Estimates.parse("exact"))
GREEDY = Policy("greedy", "", Fifo(), backfill=Backfill(0))


def trace(*jobs: tuple[float, int, float], **fields: Any) -> Trace:
    """Jobs as (submitted, GPUs, run time), numbered from 1."""
    return Trace.of(TraceJob(i + 1, *job, **fields) for i, job in enumerate(jobs))


def by_id(outcome: TraceOutcome) -> dict[int, JobRecord]:
    return {record.job_id: record for record in outcome.jobs}


def test_jobs_start_at_the_next_interval_and_run_for_their_run_time() -> None:
    jobs = by_id(simulate(trace((3, 1, 100), (4, 1, 7)), ONE_GPU, GREEDY, EXACT))
    assert (jobs[1].start_s, jobs[1].end_s) == (10, 110)
    assert (jobs[2].start_s, jobs[2].end_s) == (110, 117)


def test_slurms_main_scheduler_starts_the_head_of_the_queue_and_all_others_wait_for_the_policy() -> None:
    two = ClusterShape(1, 2)
    jobs = trace((0, 1, 13), (0, 1, 36), (1, 2, 10), (15, 1, 10))
    soon = by_id(simulate(jobs, two, GREEDY, replace(EXACT, main_interval_s=2, main_offset_s=0.5)))
    # From 14.5 s on job 3 is the head and does not fit, so job 4 waits for 20 s. At 36.5 s nobody stands before job 3.
    assert [soon[n].start_s for n in (1, 2, 3, 4)] == [0, 0, 36.5, 20]
    late = by_id(simulate(jobs, two, GREEDY, EXACT))
    assert [late[n].start_s for n in (1, 2, 3, 4)] == [0, 0, 40, 20]


def test_slurms_backfill_starts_jobs_in_the_order_that_the_policy_gave_last() -> None:
    shortest = catalog.build("srtf")
    jobs = trace((0, 1, 12), (1, 1, 50), (2, 1, 30), (13, 1, 5))
    found = by_id(simulate(jobs, ONE_GPU, shortest, replace(EXACT, backfill_interval_s=4, backfill_offset_s=2)))
    # Job 1 starts at 2 s. At 10 s the policy puts job 3 before job 2. At 14 s job 4, the shortest of all, is not yet in
    # that order; at 20 s it is, and job 3 ends at 44 s.
    assert [found[n].start_s for n in (1, 3, 4, 2)] == [2, 14, 46, 54]
    own = by_id(simulate(jobs, ONE_GPU, shortest, EXACT))
    assert [own[n].start_s for n in (1, 4, 3, 2)] == [0, 20, 30, 60]


def test_backfill_keeps_the_starts_that_it_promised_whatever_the_policy_promises() -> None:
    """The policy is greedy and would start job 3 at 10 s, for 100 s."""
    two = ClusterShape(1, 2)
    jobs = trace((0, 1, 50), (1, 2, 10), (2, 1, 100), time_limit_s=100)
    found = by_id(simulate(jobs, two, GREEDY, replace(EXACT, backfill_interval_s=10)))
    assert [found[n].start_s for n in (1, 2, 3)] == [0, 50, 60]


SHARDS = replace(EXACT, interval_s=5, main_interval_s=1, shards=2)


@pytest.mark.parametrize(
    ("rule", "end_s"), [(ShardRule.FIRST_FIT, [20, 20, 10]), (ShardRule.LEAST_LOADED, [20, 10, 20])]
)
def test_slurm_chooses_the_gpu_of_a_shard_by_its_rule(rule: ShardRule, end_s: list[float]) -> None:
    """Of stages that are not known nobody knows who suits whom: two jobs of a GPU take turns."""
    jobs = trace((0, 1, 10), (0, 1, 10), (0, 1, 10))
    found = by_id(simulate(jobs, ClusterShape(1, 2), GREEDY, replace(SHARDS, shard_rule=rule)))
    assert [found[n].end_s for n in (1, 2, 3)] == end_s


def test_a_shard_that_comes_free_goes_to_the_next_of_the_policys_order_before_the_policy_looks_again() -> None:
    jobs = trace((0, 1, 8), (0, 1, 40), (1, 1, 30), (1, 1, 20))
    found = by_id(simulate(jobs, ONE_GPU, catalog.build("srtf"), SHARDS))
    # Job 1 is through with 8 s of work at 16 s; the policy, which looks at 15 and 20 s, put job 4 before job 3.
    assert [found[n].start_s for n in (1, 2, 4)] == [0, 0, 16]
    assert found[3].start_s > found[4].end_s - 1


def test_shards_are_of_one_gpu_and_somebody_has_to_start_their_jobs() -> None:
    with pytest.raises(SimulationError, match="jobs of several"):
        simulate(trace((0, 2, 10)), ClusterShape(1, 2), GREEDY, SHARDS)
    with pytest.raises(SimulationSettingsError, match="nobody starts the jobs"):
        Settings(shards=2)


def test_passes_run_at_measured_times_then_at_the_interval() -> None:
    pass_times = PassTimes(policy_s=(0.5, 3.0), backfill_s=(1.25,), main_s=(2.75, 9.5))
    how = replace(EXACT, interval_s=5, backfill_interval_s=4, main_interval_s=2, pass_times=pass_times)
    jobs = by_id(simulate(trace((0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 1, 9), (0, 1, 1)), ONE_GPU, GREEDY, how))
    # Backfill at 1.25, 5.25, ..., the main scheduler at 2.75, 9.5, 11.5, ...
    assert [jobs[n].start_s for n in (1, 2, 3, 4, 5)] == [1.25, 2.75, 5.25, 9.25, 19.5]


@pytest.mark.parametrize("times_s", [(1.0, 1.0), (2.0, 1.0), (0.0, math.nan), (0.0, math.inf)])
def test_measured_pass_times_must_ascend(times_s: tuple[float, ...]) -> None:
    with pytest.raises(SimulationSettingsError, match=r"pass_times\.main_s"):
        Settings(pass_times=PassTimes(main_s=times_s))


@pytest.mark.parametrize("name", ["main_interval_s", "main_offset_s", "backfill_interval_s", "backfill_offset_s"])
def test_the_times_of_slurms_schedulers_must_make_sense(name: str) -> None:
    with pytest.raises(SimulationSettingsError, match=f"{name}: -1"):
        Settings(**{name: -1.0})


def test_preemption_costs_a_checkpoint_and_a_restart() -> None:
    srsf = catalog.build("srsf", catalog.PolicyOptions(quantum_s=50))
    jobs = by_id(simulate(trace((0, 1, 1000), (5, 1, 30)), ONE_GPU, srsf, EXACT))
    # Job 1 may yield from 50 s on and saves until 55 s; job 2 starts at the interval after that. Job 1 loads again
    # from 90 s to 110 s and then has 950 s of work left.
    assert (jobs[2].start_s, jobs[2].end_s) == (60, 90)
    assert jobs[1].preemptions == 1
    assert jobs[1].end_s == 90 + 20 + 950
    assert jobs[1].held_s == 55 + 20 + 950


def test_a_time_limit_ends_a_job() -> None:
    jobs = by_id(simulate(trace((0, 1, 100), time_limit_s=60), ONE_GPU, GREEDY, EXACT))
    assert (jobs[1].end_s, jobs[1].ending) == (60, Ending.TIME_LIMIT)
    assert by_id(simulate(trace((0, 1, 60), time_limit_s=60), ONE_GPU, GREEDY, EXACT))[1].ending is Ending.COMPLETED


def test_the_policy_plans_once_per_interval_while_jobs_report() -> None:
    learning = Learning.of_epochs(np.array([1.0, 0.5, 0.2]), 2, 15.0, 0.2, Exploration(sweep="s"))
    reporting = trace((0, 1, 30), learning=learning)
    for interval_s in (10.0, 0.1):
        spy = Spy()
        simulate(
            reporting, ONE_GPU, Policy("spy", "", spy, backfill=Backfill(0)), replace(EXACT, interval_s=interval_s)
        )
        asked_s = [snapshot.now_s for snapshot in spy.seen]
        assert len(set(asked_s)) == len(asked_s)
        assert asked_s[0] == 0.0
        assert len(asked_s) == pytest.approx(30 / interval_s, abs=1)


def reporting_at(*times_s: float) -> Learning:
    count = len(times_s)
    losses, steps = np.linspace(1.0, 0.5, count), np.arange(count) + 1
    told = Exploration(sweep="s", checkpoint_signal="USR1", may_stop=True)
    return Learning(losses, np.array(times_s), steps, count, 0.5, told)


Seen = list[tuple[float, JobState, int, float | None]]


def seen_of(jobs: Trace, job_id: int) -> Seen:
    """(Time, state, reports, first report of the run) of a job at each pass of a policy that starts all it can."""
    found: Seen = []

    def look(now: Snapshot) -> Plan:
        found.extend(
            (now.now_s, job.state, len(job.points), job.first_report_s) for job in now.jobs if job.job_id == job_id
        )
        return GREEDY.plan(now)

    simulate(jobs, ONE_GPU, ScriptedPolicy(look), EXACT)
    return found


def test_a_training_in_the_queue_has_reported_nothing() -> None:
    jobs = trace((0, 1, 20), (0, 1, 20), learning=Learning.of_epochs(np.array([1.0, 0.5]), 1, 20.0, 0.5, Exploration()))
    queued = [reports for _, state, reports, _ in seen_of(jobs, 2) if state is JobState.PENDING]
    assert queued == [0] * len(queued) != []
    assert (30.0, JobState.RUNNING, 1, 20.0) in seen_of(jobs, 2)


def test_the_first_report_comes_when_the_curve_says() -> None:
    seen = seen_of(trace((0, 1, 60), learning=reporting_at(25.0, 50.0)), 1)
    reported = {now_s: (reports, first_s) for now_s, state, reports, first_s in seen if state is JobState.RUNNING}
    assert (reported[20.0], reported[30.0], reported[50.0]) == ((0, None), (1, 25.0), (2, 25.0))


def test_a_training_reports_again_some_time_after_it_was_interrupted() -> None:
    seen: Seen = []

    def interrupts(now: Snapshot) -> Plan:
        seen.extend((now.now_s, job.state, len(job.points), job.first_report_s) for job in now.jobs)
        return Plan(preemptions=(Preemption(1, ""),)) if now.now_s == 30.0 else GREEDY.plan(now)

    simulate(trace((0, 1, 100), learning=reporting_at(25.0, 70.0)), ONE_GPU, ScriptedPolicy(interrupts), EXACT)
    # It saves until 35 s, starts again at 40 s and works from 60 s on: the report after 70 s of work comes at 100 s.
    assert {(30.0, JobState.RUNNING, 1, 25.0), (40.0, JobState.PENDING, 1, None)} <= set(seen)
    assert {(90.0, JobState.RUNNING, 1, None), (100.0, JobState.RUNNING, 2, 100.0)} <= set(seen)


@pytest.mark.parametrize("epoch_s", [10.0, 3.0])
def test_asha_judges_a_training_that_runs_past_a_rung_between_two_passes(epoch_s: float) -> None:
    """Of nine trainings three may pass the first rung, one of them the second, however often they report."""
    asha = catalog.build("explsched", catalog.PolicyOptions(sweep_strategy="asha"))
    told = Exploration(sweep="s", checkpoint_signal="USR1", may_stop=True)
    jobs = Trace.of(
        TraceJob(
            n, 0.0, 1, 27 * epoch_s, learning=Learning.of_epochs(np.linspace(1, n / 10, 28), 27, epoch_s, 0.1, told)
        )
        for n in range(1, 10)
    )
    found = by_id(simulate(jobs, ClusterShape(1, 9), asha, EXACT))
    assert sum(job.ending is Ending.COMPLETED for job in found.values()) == 1
    assert found[1].ending is Ending.COMPLETED


def test_a_policy_is_told_how_long_ended_jobs_ran_as_long_as_that_tells_of_others() -> None:
    spy = Spy()
    jobs = trace(*[(float(i), 1, 10.0 + i % 3) for i in range(400)], (400.0, 2, 5.0))
    simulate(jobs, ClusterShape(1, 2), Policy("spy", "", spy, backfill=Backfill(0)), EXACT)
    assert spy.seen[0].ended_runs == ()
    told = [{run.job_id: run for run in snapshot.ended_runs} for snapshot in spy.seen]
    assert told[1][1] == EndedRun(1, 0.0, 1, 10.0)
    assert max(map(len, told)) < 200
    assert {job_id + 1 for job_id in range(360, 398)} <= told[-1].keys()


def test_a_simulation_can_end_before_its_jobs_do() -> None:
    jobs = by_id(simulate(trace((0, 1, 100), (0, 1, 100), (70, 1, 1)), ONE_GPU, GREEDY, replace(EXACT, until_s=60)))
    assert sorted(jobs) == [1, 2]
    assert (jobs[1].ending, jobs[1].held_s, jobs[1].end_s) == (Ending.UNFINISHED, 60, 60)
    assert (jobs[2].ending, jobs[2].held_s) == (Ending.UNFINISHED, 0)
    assert np.isnan(jobs[2].start_s)
    whole = by_id(simulate(trace((0, 1, 10)), ONE_GPU, GREEDY, replace(EXACT, until_s=60)))
    assert whole[1].ending is Ending.COMPLETED


def test_work_that_is_cut_short_counts_without_saving_and_loading_and_at_its_speed() -> None:
    preempted = simulate(trace((0, 1, 5000), (5, 1, 100)), ONE_GPU, catalog.build("srsf"), replace(EXACT, until_s=2000))
    assert measure(preempted).wasted_gpu_h == pytest.approx((5 + 20) / 3600)  # it saves, and loads
    jobs = Trace.of(TraceJob(n, 0, 1, 1000, priority=n) for n in (0, 1))
    shared = simulate(jobs, ONE_GPU, catalog.build("antman"), replace(EXACT, until_s=100))
    assert measure(shared).useful_gpu_h == pytest.approx((100 + 50) / 3600)  # the opportunistic job at half speed


def test_gangs_need_their_gpus_on_one_node() -> None:
    # 2 nodes x 2 GPUs, one GPU of each taken: 2 GPUs are free, but a gang of 2 waits for a node of its own.
    cluster = ClusterShape(2, 2)
    spread = trace((0, 2, 40), (0, 1, 100), (0, 1, 100), (50, 2, 10), (50, 1, 10))
    jobs = by_id(simulate(spread, cluster, GREEDY, EXACT))
    assert jobs[2].start_s == jobs[3].start_s == 0  # consolidated on the second node
    assert jobs[4].start_s == 50
    assert jobs[5].start_s == 60
    larger = by_id(simulate(trace((0, 1, 100), (0, 3, 10)), cluster, GREEDY, EXACT))
    assert larger[2].start_s == 0


@dataclass(frozen=True)
class Spy:
    """First in, first out; keeps what it is shown."""

    seen: list[Snapshot] = field(default_factory=list)
    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        self.seen.append(snapshot)
        return Fifo().rank(snapshot)


@dataclass(frozen=True)
class LengthSpy(Spy):
    needs_durations: ClassVar[bool] = True


def shown(estimates: str, spy: Spy) -> float | None:
    policy = Policy("spy", "", spy, backfill=Backfill(0))
    with_limit = trace((0, 1, 100), time_limit_s=400)
    simulate(with_limit, ONE_GPU, policy, replace(EXACT, estimates=Estimates.parse(estimates)))
    return spy.seen[0].jobs[0].expected_s


def test_only_policies_that_need_durations_get_estimates() -> None:
    assert shown("exact", LengthSpy()) == 100
    assert shown("limit", LengthSpy()) is None
    assert shown("exact", Spy()) is None
    assert shown("noisy:0.5", LengthSpy()) not in (100, None)
    assert shown("noisy:0.5", LengthSpy()) == shown("noisy:0.5", LengthSpy())


def test_learnt_estimates_tell_short_jobs_from_long_ones_by_their_owners() -> None:
    owners = [("ada", 5000.0), ("bob", 50.0)]
    past = tuple(TraceJob(i, float(i), 1, run_s, user=user) for i, (user, run_s) in enumerate(owners * 10))
    queue = Trace.of(
        [
            TraceJob(1, 0.0, 1, 100.0, user="eve"),
            *(TraceJob(2 + i, 5.0, 1, run_s, user=user) for i, (user, run_s) in enumerate(owners)),
        ]
    )
    without = replace(EXACT, estimates=Estimates.parse("limit"))
    with_history = replace(EXACT, estimates=Estimates.parse("learnt"), history=past)
    starts = [
        [by_id(simulate(queue, ONE_GPU, row("srsf"), how))[n].start_s for n in (2, 3)]
        for how in (without, with_history)
    ]
    assert starts[0] == sorted(starts[0])  # nothing is known: in order of submission
    assert starts[1] == sorted(starts[1], reverse=True)


def test_what_fits_before_a_reservation_changes_where_a_job_outlives_its_likes() -> None:
    """Job 1 seems to end soon, and job 2 waits for it. Job 3 fits before that only once job 1 has turned out long."""
    short = [TraceJob(100 + n, 0, 2, 100, user="a") for n in range(20)]
    likes = [TraceJob(200 + n, 0, gpus, 200, user="b") for n, gpus in enumerate(20 * [2, 4])]
    history = (*short, TraceJob(99, 0, 2, 5000, user="a"), *likes)
    jobs = Trace.of(
        TraceJob(n, n, gpus, run_s, user=user)
        for n, gpus, run_s, user in ((1, 2, 5000, "a"), (2, 4, 200, "b"), (3, 2, 200, "b"))
    )
    learnt = replace(EXACT, estimates=Estimates.parse("learnt"), history=history)
    found = by_id(simulate(jobs, ClusterShape(1, 4), catalog.build("fifo"), learnt))
    assert 100 < found[3].start_s < 1000


def test_learnt_estimates_are_judged_at_submission() -> None:
    """Ada's job is as long as her past ones, bob's ten times as long."""
    owners = [("ada", 100.0), ("bob", 100.0)] * 20
    past = tuple(TraceJob(i, float(i), 1, run_s, user=user) for i, (user, run_s) in enumerate(owners))
    queue = Trace.of([TraceJob(1, 0.0, 1, 100.0, user="ada"), TraceJob(2, 1.0, 1, 1000.0, user="bob")])
    learnt = replace(EXACT, estimates=Estimates.parse("learnt"), history=past)
    outcome = simulate(queue, ONE_GPU, row("srsf"), learnt)
    assert outcome.predicted == ((True, True), (False, False))
    figures = measure(outcome)
    assert (figures.predicted_share, figures.predicted_twice, figures.predicted_inside) == (1.0, 0.5, 0.5)
    unknown = measure(simulate(queue, ONE_GPU, row("srsf"), replace(learnt, history=())))
    assert (unknown.predicted_share, unknown.predicted_twice) == (0.0, None)
    assert measure(simulate(queue, ONE_GPU, row("srsf"), EXACT)).predicted_share is None


@pytest.mark.parametrize("text", ["oracle", "noisy", "noisy:", "noisy:-1", "noisy:nan", "exact:1", ""])
def test_unknown_estimates_are_refused(text: str) -> None:
    with pytest.raises(SimulationSettingsError, match="exact, limit, learnt, noisy:SIGMA"):
        Estimates.parse(text)


@pytest.mark.parametrize("field_", ["interval_s", "checkpoint_s", "restart_s"])
def test_absurd_settings_are_refused(field_: str) -> None:
    for value in (float("nan"), -1.0, 1e9):
        with pytest.raises(SimulationSettingsError, match=field_):
            Settings(**{field_: value})


@pytest.mark.parametrize("estimates", ["exact", "limit"])
def test_columns_say_what_the_jobs_say(estimates: str) -> None:
    spy = LengthSpy()
    policy = Policy("spy", "", spy, backfill=Backfill(0), preempt=row("srsf").preempt)
    jobs = trace(*[(7.0 * i, 1 + i % 2, 700.0 + i) for i in range(12)], time_limit_s=2000)
    simulate(jobs, ClusterShape(1, 4), policy, replace(EXACT, estimates=Estimates.parse(estimates)))
    for snapshot in spy.seen:
        expected = Columns.of(snapshot.jobs, snapshot.now_s)
        for name in Columns.__struct_fields__:
            np.testing.assert_allclose(getattr(snapshot.columns, name), getattr(expected, name), err_msg=name)


@dataclass(frozen=True)
class ScriptedPolicy:
    """A policy of somebody else's, with plans of its own."""

    make: Any
    name: str = "elsewhere"
    needs_durations: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot) -> Plan:
        made = self.make(snapshot)
        assert isinstance(made, Plan)
        return made


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda _s: Plan(starts=(Start(99, (NodeGpus("node1", 1),), ""),)), "job 99, which is not in the snapshot"),
        (lambda s: Plan(starts=tuple(Start(j.job_id, (NodeGpus("node1", 1),), "") for j in s.jobs)), "gives away 2"),
        (lambda s: Plan(starts=(Start(1, (NodeGpus("node1", 2),), ""),)), "job 1 2 GPUs instead of 1"),
        (lambda s: Plan(starts=(Start(1, (NodeGpus("moon", 1),), ""),)), "node moon"),
        (lambda s: Plan(starts=(Start(1, (NodeGpus("node1", 1),), ""),) * 2), "2 times"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_name(make: Any, fault: str) -> None:
    with pytest.raises(PolicyError, match=f"elsewhere.*{fault}"):
        simulate(trace((0, 1, 10), (0, 1, 10)), ONE_GPU, ScriptedPolicy(make), EXACT)


def test_a_policy_that_starts_nothing_is_named() -> None:
    with pytest.raises(SimulationError, match="elsewhere.*never starts 1 job"):
        simulate(trace((0, 1, 10)), ONE_GPU, ScriptedPolicy(lambda _s: Plan()), EXACT)


def test_who_waits_for_the_gpus_of_a_stopped_job_starts_though_nothing_else_happens() -> None:
    def stops_the_first(now: Snapshot) -> Plan:
        if {job.job_id for job in now.jobs} == {1, 2}:
            return Plan(stops=(Stop(1, "hopeless"),))
        return Plan(starts=tuple(Start(job.job_id, (NodeGpus("node1", 1),), "") for job in now.jobs if job.eligible))

    jobs = by_id(simulate(trace((0, 1, 100), (5, 1, 100)), ONE_GPU, ScriptedPolicy(stops_the_first), EXACT))
    assert (jobs[1].ending, jobs[1].end_s, jobs[2].start_s) == (Ending.STOPPED, 10, 20)


def test_who_shared_a_gpu_with_a_stopped_job_ends_the_sooner() -> None:
    told = Exploration(sweep="s", may_stop=True)
    jobs = trace((0, 1, 100), (0, 1, 100), learning=Learning.of_epochs(np.linspace(1.0, 0.5, 11), 10, 10.0, 0.5, told))

    def stops_the_first(now: Snapshot) -> Plan:
        return Plan(stops=(Stop(1, "hopeless"),) if len(now.jobs) == 2 and now.now_s >= 10 else ())

    found = by_id(simulate(jobs, ONE_GPU, ScriptedPolicy(stops_the_first), SHARDS))
    # Side by side each runs at half its speed: at 10 s job 2 has 95 s left.
    assert (found[1].end_s, found[2].end_s) == (10, 105)


def test_jobs_that_start_in_a_quiet_moment_take_turns() -> None:
    """Nothing but the end of its slice says when the job that a pass has started has to yield."""
    fair = baselines.fair(catalog.PolicyOptions(quantum_s=50))
    jobs = by_id(simulate(trace((0, 1, 200), (5, 1, 200)), ONE_GPU, fair, EXACT))
    assert [jobs[job_id].preemptions for job_id in (1, 2)] == [2, 2]


def test_scores_that_change_with_time_are_looked_at_once_a_quantum() -> None:
    """Under Themis a job that waits comes nearer to its turn though nothing happens."""
    themis = catalog.build("themis", catalog.PolicyOptions(quantum_s=60))
    jobs = by_id(simulate(trace((0, 1, 2000), (5, 1, 2000)), ONE_GPU, themis, EXACT))
    assert min(jobs[job_id].preemptions for job_id in (1, 2)) > 5


@pytest.mark.parametrize("policy", ["explsched-share", "muri-s"])
def test_a_short_job_takes_its_turn_where_jobs_share_though_nothing_happens(policy: str) -> None:
    share = catalog.build(policy, catalog.PolicyOptions(quantum_s=60))
    jobs = by_id(simulate(trace((0, 1, 5000), (5, 1, 100)), ONE_GPU, share, EXACT))
    assert (jobs[2].start_s, jobs[1].preemptions) == (70, 1)


@pytest.mark.parametrize("policy", ["srsf", "explsched-share"])
def test_a_preemptive_policy_that_never_starts_a_job_is_named(policy: str) -> None:
    with pytest.raises(SimulationError, match="never starts 1 job"):
        simulate(trace((0, 2, 10), (0, 1, 10)), ONE_GPU, catalog.build(policy), EXACT)


def test_slices_shorter_than_a_restart_are_named_instead_of_going_on_for_ever() -> None:
    fair = baselines.fair(catalog.PolicyOptions(quantum_s=10))
    costly = replace(EXACT, interval_s=10.0, restart_s=60.0)
    with pytest.raises(SimulationError, match="'fair' preempts all jobs before they get to work.*a restart takes"):
        simulate(trace((0, 1, 50), (5, 1, 50)), ONE_GPU, fair, costly)


@settings(max_examples=40)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 500), st.sampled_from([1, 2, 4, 8]), st.integers(1, 900)), min_size=1, max_size=25
    ),
    policy=st.sampled_from(["fifo", "srtf", "srsf", "tiresias"]),
)
def test_gpu_seconds_are_conserved_and_nobody_is_lost(jobs: list[tuple[int, int, int]], policy: str) -> None:
    cluster = ClusterShape(2, 4)
    options = catalog.PolicyOptions(quantum_s=60)
    outcome = simulate(trace(*jobs), cluster, catalog.build(policy, options), EXACT)
    assert [record.ending for record in outcome.jobs] == [Ending.COMPLETED] * len(jobs)
    times = [use.time_s for use in outcome.usage]
    busy = [use.busy_gpus for use in outcome.usage]
    used_gpu_s = float(np.dot(np.diff(times), busy[:-1]))
    assert used_gpu_s == pytest.approx(sum(record.held_s * record.gpus for record in outcome.jobs))
    for record in outcome.jobs:
        overheads_s = record.preemptions * (EXACT.checkpoint_s + EXACT.restart_s)
        assert record.held_s == pytest.approx(record.run_s + overheads_s)
        assert record.end_s >= record.submit_s + record.run_s
    assert busy[-1] == 0
    assert max(busy) <= cluster.gpus
