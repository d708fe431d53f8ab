"""Jobs that share GPUs: who may, who does, and what it costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import (
    Exploration,
    GpuPart,
    GpuRequest,
    Job,
    JobState,
    Node,
    NodeGpus,
    ProgressPoint,
    StageProfile,
)
from sched_policy.plan import Plan
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Estimates, Settings
from simulation.interference import Guarantee, Interleaving
from simulation.pairs import best_benefit
from simulation.results.outcome import Ending
from simulation.traces.trace import ClusterShape, StageTimes, Trace, TraceJob
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot

CONSENT = Exploration(checkpoint_signal="USR1")
READS = StageProfile(1.0, 0.9, 0.1, 0.0)
COMPUTES = StageProfile(1.0, 0.1, 0.9, 0.0)
ALIKE = ((0, READS), (0, READS), (1, COMPUTES), (1, COMPUTES))
PAIRED = (READS, COMPUTES)
TAKES_TURNS = ("explsched-share", "muri-s", "muri-l")
SHARING = ("antman", "sjf-ffs", "sjf-bsbf", *TAKES_TURNS)


def holding(job_id: int, node: str, *indices: int, **fields: Any) -> Job:
    """A running job that says which GPUs it holds."""
    fields = {"exploration": CONSENT, "profile": READS, **fields}
    return running(job_id, node, len(indices), allocation=(NodeGpus(node, len(indices), indices),), **fields)


def plan(policy: str, *jobs: Job, count: int = 1, gpus: int = 2) -> Plan:
    return checked_plan(catalog.build(policy), snapshot(*jobs, on=nodes(count, gpus)))


def started(made: Plan) -> dict[int, tuple[NodeGpus, ...]]:
    return {start.job_id: start.placement for start in made.starts}


def test_the_benefit_test_of_bsbf() -> None:
    equal = np.array([100.0])
    # Slowed by 1.2, both take 120 s together: mean 50 + (1 - 1/2.4) 120 = 120 s, against 150 s one after the other.
    assert best_benefit(equal, equal, np.array([1.2]), np.array([1.2])) == pytest.approx(120.0)
    # Slowed by 2: 50 + 0.75 x 200 = 200 s.
    assert best_benefit(equal, equal, np.array([2.0]), np.array([2.0])) == np.inf
    # A short job beside a long one: b is slowed until a ends. t_con = t_b/2 + (1 - 1/(2 xi_b)) s_a.
    short = best_benefit(np.array([10.0]), np.array([1000.0]), np.array([1.5]), np.array([1.25]))
    assert short == pytest.approx(500 + (1 - 1 / 2.5) * 15)


def test_pairs_share_only_when_no_gpus_are_unused() -> None:
    alone = holding(1, "n1", 0, profile=READS)
    newcomer = job(2, profile=COMPUTES)
    assert started(plan("sjf-ffs", alone, newcomer)) == {2: (NodeGpus("n1", 1, (1,)),)}
    full = plan("sjf-ffs", alone, newcomer, gpus=1)
    assert started(full) == {2: (NodeGpus("n1", 1, (0,)),)}
    assert [group.job_ids for group in full.groups] == [(1, 2)]


def test_a_third_job_does_not_join_a_pair() -> None:
    pair = [holding(1, "n1", 0), holding(2, "n1", 0)]
    assert started(plan("sjf-ffs", *pair, job(3), gpus=1)) == {}


@pytest.mark.parametrize(("policy", "newcomer"), [("sjf-ffs", True), ("sjf-bsbf", True), ("antman", False)])
def test_pairs_share_only_where_the_memory_of_both_fits(policy: str, newcomer: bool) -> None:  # noqa: FBT001
    def of(memory: float) -> GpuPart:
        return GpuPart(memory, memory, memory)

    there = [holding(1, "n1", 0, part=of(0.75)), holding(2, "n1", 1, part=of(0.5))]
    wants = {"profile": COMPUTES, "guaranteed": newcomer}
    assert started(plan(policy, *there, job(3, part=of(0.5), **wants))) == {3: (NodeGpus("n1", 1, (1,)),)}
    assert started(plan(policy, *there, job(3, part=of(0.75), **wants))) == {}


def test_the_best_partner_is_taken_on_whatever_node() -> None:
    long, short = (holding(i, f"n{i}", 0, profile=COMPUTES, time_limit_s=i_s) for i, i_s in ((1, 9e4), (2, 9e3)))
    newcomer = job(3, profile=READS, time_limit_s=9e3)
    assert [group.job_ids for group in plan("sjf-bsbf", long, short, newcomer, count=2, gpus=1).groups] == [(2, 3)]


def test_bsbf_waits_where_sharing_does_not_pay() -> None:
    unknown = [holding(1, "n1", 0, profile=None), job(2, profile=None)]  # they would slice time: twice as slow
    assert started(plan("sjf-ffs", *unknown, gpus=1)) == {2: (NodeGpus("n1", 1, (0,)),)}
    assert started(plan("sjf-bsbf", *unknown, gpus=1)) == {}


def test_opportunistic_jobs_go_where_no_other_one_is() -> None:
    guaranteed, opportunistic = holding(1, "n1", 0), holding(2, "n1", 1, guaranteed=False)
    waiting = [job(3, guaranteed=False), job(4, guaranteed=False), job(5)]
    made = started(plan("antman", guaranteed, opportunistic, *waiting))
    assert made == {5: (NodeGpus("n1", 1, (1,)),), 3: (NodeGpus("n1", 1, (0,)),)}


def test_guaranteed_jobs_come_before_opportunistic_ones() -> None:
    alone = {"may_share": False}
    assert started(plan("antman", job(1, guaranteed=False, **alone), job(2, **alone), gpus=1)).keys() == {2}


def test_a_job_that_does_not_say_which_gpus_it_holds_shares_none() -> None:
    for stages in (None, READS):
        secretive = running(1, "n1", 1, exploration=CONSENT, profile=stages)
        for policy in SHARING:
            made = plan(policy, secretive, job(2, guaranteed=False, profile=COMPUTES), gpus=1)
            assert (made.starts, made.groups) == ((), ()), policy


def test_a_job_that_asked_for_whole_gpus_shares_none() -> None:
    whole = {"may_share": False, "profile": COMPUTES}
    for policy in SHARING:
        waits = plan(policy, holding(1, "n1", 0), job(2, guaranteed=False, **whole), gpus=1)
        assert started(waits) == {}, policy
        assert started(plan(policy, holding(1, "n1", 0, **whole), job(2, guaranteed=False), gpus=1)) == {}, policy
        both = plan(policy, job(1, **whole), job(2, guaranteed=False, profile=READS), gpus=1)
        assert len(both.starts) == 1, policy
        assert both.groups == (), policy


def test_muri_groups_only_as_many_as_it_must() -> None:
    jobs = [job(i, profile=READS if i % 2 else COMPUTES) for i in (1, 2)]
    apart = plan("muri-s", *jobs, gpus=2)
    assert len({share.indices for placement in started(apart).values() for share in placement}) == 2
    assert apart.groups == ()
    together = plan("muri-s", *jobs, gpus=1)
    assert started(together) == {1: (NodeGpus("n1", 1, (0,)),), 2: (NodeGpus("n1", 1, (0,)),)}
    assert [set(group.job_ids) for group in together.groups] == [{1, 2}]


def test_muri_pairs_jobs_whose_stages_differ() -> None:
    jobs = [job(i, profile=profile) for i, profile in enumerate((READS, READS, COMPUTES, COMPUTES), 1)]
    profile = {waiting.job_id: waiting.profile for waiting in jobs}
    groups = plan("muri-s", *jobs, gpus=2).groups
    assert [{profile[job_id] for job_id in group.job_ids} for group in groups] == [{READS, COMPUTES}] * 2


def test_muri_tells_which_of_those_that_wait_suit_each_other() -> None:
    full = running(1, "n1", 2)
    jobs = [job(10 + i, profile=READS if i < 4 else COMPUTES) for i in range(8)]
    made = plan("muri-s", full, *jobs)
    assert made.starts == ()
    profile = {waiting.job_id: waiting.profile for waiting in jobs}
    assert sorted(len(group.job_ids) for group in made.groups) == [4, 4]
    for group in made.groups:
        assert [profile[job_id] for job_id in group.job_ids].count(READS) == 2


def test_a_newcomer_joins_a_running_job_without_moving_it() -> None:
    made = plan("muri-s", holding(1, "n1", 0, profile=READS), job(2, profile=COMPUTES), gpus=1)
    assert started(made) == {2: (NodeGpus("n1", 1, (0,)),)}
    assert made.preemptions == ()


def test_muri_moves_nobody_who_runs_already() -> None:
    """Not for a better partner, nor for a GPU that is unused: a restart costs more."""
    pairs = [holding(i, "n1", gpu, profile=stages) for i, (gpu, stages) in enumerate(ALIKE, 1)]
    assert plan("muri-s", *pairs, gpus=2).preemptions == ()
    assert plan("muri-s", *pairs, gpus=3).preemptions == ()


def test_muri_merges_running_groups_where_somebody_of_higher_rank_needs_a_gpu() -> None:
    pair = [holding(1, "n1", 0, profile=READS), holding(2, "n1", 1, profile=COMPUTES)]
    made = plan("muri-s", *pair, job(3, may_share=False, time_limit_s=60.0))
    assert [group.job_ids for group in made.groups] == [(1, 2)]
    assert [preemption.job_id for preemption in made.preemptions] == [2]
    assert made.starts == ()  # not before it has gone


def test_muri_sends_nobody_away_for_a_job_of_which_it_is_not_known_that_it_would_start() -> None:
    pair = [holding(1, "n1", 0, profile=READS), holding(2, "n1", 1, profile=COMPUTES)]
    higher = job(3, may_share=False, time_limit_s=60.0)
    assert [(gone.job_id, gone.beneficiary) for gone in plan("muri-s", *pair, higher).preemptions] == [(2, 3)]
    untested = replace(higher, may_displace=False)
    assert plan("muri-s", *pair, untested).preemptions == ()
    assert list(started(plan("muri-s", *pair, untested, gpus=3))) == [3]  # where there is room it has its place
    late = plan("muri-s", *pair, untested, job(4, may_share=False, time_limit_s=70.0))
    assert [(gone.job_id, gone.beneficiary) for gone in late.preemptions] == [(2, 4)]


def test_muri_leaves_a_job_where_it_is_beside_one_that_must_stay() -> None:
    pair = [holding(1, "n1", 0), holding(2, "n1", 0, exploration=None)]
    higher = [job(3 + i, may_share=False, time_limit_s=60.0) for i in range(2)]
    made = plan("muri-s", *pair, *higher)
    assert (list(started(made)), made.preemptions) == ([3], ())


def test_muri_groups_as_many_as_it_takes_beside_jobs_that_share_with_nobody() -> None:
    whole = job(1, may_share=False, time_limit_s=60.0)
    made = plan("muri-s", whole, job(2, profile=READS), job(3, profile=COMPUTES))
    assert started(made).keys() == {1, 2, 3}
    assert [set(group.job_ids) for group in made.groups] == [{2, 3}]


def test_jobs_that_share_with_nobody_wait_in_no_group() -> None:
    full = running(1, "n1", 2)
    whole = [job(10 + i, may_share=False, profile=(READS, COMPUTES)[i % 2]) for i in range(4)]
    assert plan("muri-s", full, *whole).groups == ()


def test_muri_asks_nobody_twice_to_go() -> None:
    leaves = holding(1, "n1", 0, may_share=False, asked_to_leave=True, time_limit_s=1e6)
    made = plan("muri-s", leaves, job(2, may_share=False, time_limit_s=60.0), gpus=1)
    assert (made.starts, made.preemptions) == ((), ())


@pytest.mark.parametrize("leaving", [{"asked_to_leave": True}, {"state": JobState.COMPLETING}])
@pytest.mark.parametrize("policy", TAKES_TURNS)
def test_jobs_that_wait_for_gpus_of_leaving_ones_displace_nobody_else(policy: str, leaving: dict[str, Any]) -> None:
    long = {"ran_s": 9e4, "expected_s": 1e6, "time_limit_s": 1e6}
    fill = [holding(4 * gpu + i, "n1", gpu, profile=PAIRED[i % 2], **long) for gpu in range(6) for i in range(4)]
    waits = [job(100 + i, profile=PAIRED[i % 2], expected_s=60.0) for i in range(4)]
    asked = plan(policy, *fill, *waits, gpus=6).preemptions
    assert {fill[gone.job_id].allocation for gone in asked}
    left = {gone.job_id for gone in asked}
    later = [replace(one, **leaving) if one.job_id in left else one for one in fill]
    made = plan(policy, *later, *waits, gpus=6)
    assert (made.starts, made.preemptions) == ((), ())  # not before they have gone
    gone = [one for one in fill if one.job_id not in left]
    assert started(plan(policy, *gone, *waits, gpus=6)).keys() == {one.job_id for one in waits}


def test_muri_leaves_a_job_alone_that_has_not_consented_or_has_just_started() -> None:
    for stays in ({"exploration": None}, {"ran_s": 10.0}):
        made = plan("muri-s", holding(1, "n1", 0, **stays), job(2, profile=COMPUTES), gpus=1)
        assert (made.starts, made.preemptions) == ((), ())


@pytest.mark.parametrize("policy", TAKES_TURNS)
def test_a_job_on_its_own_gpus_keeps_them_until_somebody_ranks_higher(policy: str) -> None:
    """Whether or not it says which ones it holds."""
    whole = {"may_share": False, "exploration": CONSENT, "time_limit_s": 8000.0}
    for runs in (running(1, "n1", 2, **whole), holding(1, "n1", 0, 1, **whole)):
        lower = job(2, 2, may_share=False, time_limit_s=9000.0, earlier_s=runs.run_s(NOW_S))
        higher = replace(lower, time_limit_s=100.0, earlier_s=0.0)
        for waiting in ((), (lower,)):
            made = plan(policy, runs, *waiting)
            assert (made.starts, made.preemptions) == ((), ())
        long_served = replace(runs, earlier_s=4000.0)
        made = plan(policy, long_served, higher, replace(higher, job_id=3))
        assert [preemption.job_id for preemption in made.preemptions] == [1]
        assert made.starts == ()  # not before it has gone


def test_jobs_on_their_own_gpus_yield_only_as_many_gpus_as_are_wanted() -> None:
    whole = {"may_share": False, "exploration": CONSENT, "time_limit_s": 8000.0}
    jobs = [running(i, "n1", 1, **whole) for i in (1, 2, 3, 4)]
    made = plan("muri-s", *jobs, job(5, 2, may_share=False, time_limit_s=100.0), gpus=4)
    assert len(made.preemptions) == 2


def test_muri_sends_nobody_away_from_a_node_that_no_other_job_could_use() -> None:
    drained = (replace(nodes(1, 2)[0], schedulable=False),)
    for runs in (holding(1, "n1", 0), running(1, "n1", 2, exploration=CONSENT, may_share=False)):
        made = catalog.build("muri-s").plan(snapshot(runs, job(2, time_limit_s=60.0), on=drained))
        assert (made.starts, made.preemptions) == ((), ())


def test_muri_leaves_jobs_without_gpus_alone() -> None:
    runs = running(1, "n1", 0, exploration=CONSENT, allocation=())
    made = plan("muri-s", runs)
    assert (made.starts, made.preemptions) == ((), ())


def test_the_quantum_begins_with_the_first_report() -> None:
    """Loading earns nothing; a job that could be preempted while it loads might never do anything else."""
    runs = holding(1, "n1", 0, 1, may_share=False, ran_s=2000.0, time_limit_s=1e6)
    short = job(2, 2, may_share=False, time_limit_s=60.0)
    for reported_s, leaves in ((NOW_S - 700.0, True), (NOW_S - 500.0, False)):
        made = plan("muri-s", replace(runs, first_report_s=reported_s), short)
        assert bool(made.preemptions) is leaves
    loading = replace(runs, first_report_s=None, points=(ProgressPoint(1, 1.0, 1.0),))
    assert plan("muri-s", loading, short).preemptions == ()


def test_muri_makes_room_for_jobs_of_higher_rank() -> None:
    # Two gangs of 2 GPUs hold both slots; four short jobs of 2 GPUs fill them, 4 per slot, so the long ones must go
    # once more than 4 x 2 come before them.
    long = [holding(i, f"n{i}", 0, 1, time_limit_s=1e6) for i in (1, 2)]
    short = [job(10 + i, 2, profile=COMPUTES, time_limit_s=100.0) for i in range(8)]
    made = plan("muri-s", *long, *short, count=2)
    assert {preemption.job_id for preemption in made.preemptions} == {1, 2}
    assert made.starts == ()  # not before they have gone


def test_sharing_is_never_free_and_never_a_gain() -> None:
    reads, computes = job(1, profile=READS), job(2, profile=COMPUTES)
    for first, other in ((reads, computes), (reads, reads), (computes, computes)):
        assert Interleaving().slowdown(first, (other,)) >= 1.0
    assert Interleaving().slowdown(reads, ()) == 1.0
    assert Interleaving().slowdown(job(3), (reads, computes)) == 3.0
    assert Interleaving().slowdown(reads, (computes,)) < Interleaving().slowdown(reads, (reads,))


def test_guaranteed_jobs_feel_nothing_of_opportunistic_ones() -> None:
    guaranteed, opportunistic = job(1, profile=READS), job(2, profile=COMPUTES, guaranteed=False)
    assert Guarantee().slowdown(guaranteed, (opportunistic,)) == 1.0
    assert Guarantee().slowdown(opportunistic, (guaranteed,)) >= 1.0
    assert Guarantee().slowdown(opportunistic, (replace(opportunistic, job_id=3),)) == 2.0


def test_a_pair_slows_down_until_one_of_them_ends() -> None:
    # Of unknown stages: they slice time. The second joins at 10 s and needs 20 s of its own: 40 s beside the first,
    # which makes 20 s of progress meanwhile and has 70 s left when it is alone again.
    trace = Trace.of([TraceJob(1, 0.0, 1, 100.0), TraceJob(2, 10.0, 1, 20.0)])
    told = Settings(interval_s=10, estimates=Estimates.parse("exact"))
    first, second = simulate(trace, ClusterShape(1, 1), catalog.build("sjf-ffs"), told).jobs
    assert (second.start_s, second.end_s) == (10, 50)
    assert first.end_s == 120
    assert first.held_s == 120


STAGES = [StageTimes(0.5, 0.1, 0.0), StageTimes(0.1, 0.8, 0.1), StageTimes(0.2, 0.3, 0.5)]


@settings(max_examples=40)
@given(
    drawn=st.lists(
        st.tuples(
            st.integers(0, 500),
            st.sampled_from([1, 2, 4, 8]),
            st.integers(1, 900),
            st.integers(0, 3),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=16,
    ),
    policy=st.sampled_from(SHARING),
)
def test_everybody_ends_and_no_gpu_is_used_twice(drawn: list[tuple[int, int, int, int, int]], policy: str) -> None:
    jobs = [
        TraceJob(
            i + 1,
            float(submit_s),
            gpus,
            float(run_s),
            iterations=run_s,
            stages=(*STAGES, None)[kind],
            priority=priority,
        )
        for i, (submit_s, gpus, run_s, kind, priority) in enumerate(drawn)
    ]
    cluster = ClusterShape(2, 4)
    told = Settings(interval_s=10, estimates=Estimates.parse("exact"), until_s=200_000)
    made = catalog.build(policy, catalog.PolicyOptions(quantum_s=120))
    outcome = simulate(Trace.of(jobs), cluster, made, told)
    assert Counter(record.ending for record in outcome.jobs) == {Ending.COMPLETED: len(jobs)}
    for record in outcome.jobs:
        assert record.held_s >= record.run_s - 1e-6
    busy = [use.busy_gpus for use in outcome.usage]
    assert max(busy) <= cluster.gpus
    assert busy[-1] == 0


def test_groups_by_worth_leave_an_overdue_job_alone_on_its_gpu_before_all_others() -> None:
    late = job(1, profile=READS, expected_s=90_000.0, is_overdue=True)
    made = plan("explsched-share", late, *(job(i, profile=COMPUTES, expected_s=10.0) for i in range(2, 8)), gpus=1)
    assert list(started(made)) == [1]


def test_groups_by_worth_let_a_short_job_run_before_a_long_one() -> None:
    short, long = job(2, profile=COMPUTES, expected_s=10.0), job(1, profile=COMPUTES, expected_s=90_000.0)
    assert list(started(plan("explsched-share", long, short, gpus=1))) == [2]
    assert sorted(started(plan("muri-s", long, short, gpus=1))) == [1, 2]


@pytest.mark.parametrize("interrupted", [CONSENT, None])
def test_groups_by_worth_let_a_job_join_one_that_is_left_alone(interrupted: Exploration | None) -> None:
    busy = holding(1, "n1", 0, profile=READS, start_s=NOW_S - 1.0, exploration=interrupted)
    made = plan("explsched-share", busy, job(2, profile=COMPUTES), gpus=1)
    assert started(made) == {2: (NodeGpus("n1", 1, (0,)),)}
    assert [group.job_ids for group in made.groups] == [(1, 2)]
    assert not made.preemptions


def test_groups_by_worth_let_nobody_join_a_job_that_it_does_not_suit_or_that_is_about_to_leave() -> None:
    waiting = job(2, profile=COMPUTES)
    unlike = holding(1, "n1", 0, profile=COMPUTES, start_s=NOW_S - 1.0)
    assert not started(plan("explsched-share", unlike, waiting, gpus=1))
    leaving = holding(1, "n1", 0, profile=READS, start_s=NOW_S - 1.0, asked_to_leave=True)
    assert not started(plan("explsched-share", leaving, waiting, gpus=1))


def narrow(job_id: int, **fields: Any) -> Job:
    """A short job that may use only some nodes of its partition."""
    return job(job_id, partition="main [a100]", profile=READS, expected_s=900.0, time_limit_s=900.0, **fields)


@pytest.mark.parametrize("may_share", [True, False])
@pytest.mark.parametrize("partition", ["other", "main"])
@pytest.mark.parametrize("policy", TAKES_TURNS)
def test_nobody_is_preempted_for_jobs_that_cannot_use_its_gpus(
    policy: str,
    partition: str,
    may_share: bool,  # noqa: FBT001
) -> None:
    on = (Node("n1", 2, frozenset({"main", "main [a100]"})), Node("n2", 4, frozenset({partition})))
    long = {"partition": partition, "expected_s": 2e5, "time_limit_s": 2e5, "may_share": may_share}
    jobs = [holding(100 + gpu, "n2", gpu, **long) for gpu in range(4)]
    waiting = [narrow(1 + i, may_share=may_share) for i in range(40)]
    made = checked_plan(catalog.build(policy), snapshot(*jobs, *waiting, on=on))
    assert {share.node for placement in started(made).values() for share in placement} <= {"n1"}
    assert made.preemptions == ()


@pytest.mark.parametrize("policy", TAKES_TURNS)
def test_nobody_is_preempted_for_gangs_that_fit_on_no_node(policy: str) -> None:
    whole = {"may_share": False, "expected_s": 9e5, "time_limit_s": 9e5}
    stay = [running(50 + node, f"n{node}", **whole) for node in range(1, 5)]
    leave = [running(100 + node, f"n{node}", exploration=CONSENT, **whole) for node in range(1, 5)]
    gangs = [job(1 + i, 2, may_share=False, expected_s=600.0, time_limit_s=600.0) for i in range(2)]
    later = [job(200 + i, 2, may_share=False, expected_s=2e5, time_limit_s=2e5) for i in range(20)]
    on_one_node = [replace(gang, request=GpuRequest.on_each(1, 2)) for gang in (*gangs, *later)]
    made = plan(policy, *stay, *leave, *on_one_node, count=4)
    assert (made.starts, made.preemptions) == ((), ())


@pytest.mark.parametrize("narrow_jobs", [0, 1, 8])
def test_a_job_starts_beside_others_rather_than_in_their_place(narrow_jobs: int) -> None:
    """However many wait that can use neither node now."""
    on = (Node("n1", 2, frozenset({"main", "main [a100]"})), Node("n2", 3, frozenset({"main"})))
    stay = [running(50 + i, "n1", 1, may_share=False, allocation=(NodeGpus("n1", 1, (i,)),)) for i in (0, 1)]
    long = {"expected_s": 1e5, "time_limit_s": 1e5}
    share = [holding(101 + i, "n2", i, **long) for i in range(3)]
    unable = [narrow(1 + i, may_share=False) for i in range(narrow_jobs)]
    waits = job(200, profile=COMPUTES, **long)
    made = checked_plan(catalog.build("explsched-share"), snapshot(*stay, *share, *unable, waits, on=on))
    assert (made.preemptions, started(made).keys()) == ((), {200})


@pytest.mark.parametrize("may_share", [True, False])
def test_gpus_of_a_job_whose_node_has_left_its_partition_are_not_given_away(may_share: bool) -> None:  # noqa: FBT001
    on = (Node("n1", 1, frozenset({"B"})), Node("n2", 1, frozenset({"A"})))
    left = holding(1, "n1", 0, partition="A", start_s=NOW_S - 10, first_report_s=NOW_S - 5)
    full = running(2, "n2", 1, partition="A", may_share=False)
    waits = job(3, partition="B", profile=COMPUTES, may_share=may_share, expected_s=900.0)
    made = checked_plan(catalog.build("explsched-share"), snapshot(left, full, waits, on=on))
    assert started(made) == {}


@pytest.mark.parametrize("policy", TAKES_TURNS)
def test_jobs_share_gpus_while_only_other_partitions_have_unused_ones(policy: str) -> None:
    on = (Node("n1", 4, frozenset({"main"})), Node("n2", 8, frozenset({"other"})))
    waiting = [job(i, profile=READS if i % 2 else COMPUTES, expected_s=900.0) for i in range(1, 9)]
    made = checked_plan(catalog.build(policy), snapshot(*waiting, on=on))
    assert len(made.starts) == 8
    assert {share.node for start in made.starts for share in start.placement} == {"n1"}


LENGTHS_S = st.sampled_from([300.0, 9e3, 9e5])


@settings(max_examples=150, deadline=None)
@given(
    runs=st.lists(st.tuples(LENGTHS_S, st.sampled_from(["main", "other"]), st.booleans(), st.booleans()), max_size=8),
    waits=st.lists(
        st.tuples(LENGTHS_S, st.sampled_from(["main", "main [a100]", "other"]), st.booleans(), st.integers(1, 4)),
        min_size=1,
        max_size=24,
    ),
    policy=st.sampled_from(TAKES_TURNS),
)
def test_whoever_is_preempted_makes_room_for_a_job_that_waits(
    runs: list[tuple[float, str, bool, bool]], waits: list[tuple[float, str, bool, int]], policy: str
) -> None:
    of_nodes = ({"main", "main [a100]"}, {"main", "other"}, {"third"})
    on = tuple(Node(f"n{number}", 4, frozenset(partitions)) for number, partitions in enumerate(of_nodes, 1))
    unused = {"main": [("n1", gpu) for gpu in range(4)], "other": [("n2", gpu) for gpu in range(4)]}
    jobs = []
    for number, (length_s, partition, shares, may_leave) in enumerate(runs):
        if unused[partition]:
            node, gpu = unused[partition].pop()
            told = {"partition": partition, "expected_s": length_s, "time_limit_s": length_s, "may_share": shares}
            jobs.append(holding(100 + number, node, gpu, exploration=CONSENT if may_leave else None, **told))
    for number, (length_s, partition, shares, gpus) in enumerate(waits, 1):
        told = {"partition": partition, "expected_s": length_s, "time_limit_s": length_s, "may_share": shares}
        jobs.append(job(number, profile=COMPUTES, request=GpuRequest.on_each(1, gpus), **told))
    made = checked_plan(catalog.build(policy), snapshot(*jobs, on=on))
    assert all(preemption.beneficiary is not None for preemption in made.preemptions)


@pytest.mark.parametrize("allocation", [(), (NodeGpus("gone", 1, (0,)),)])
def test_groups_by_worth_do_not_start_a_job_that_completes_or_runs_without_known_gpus(
    allocation: tuple[NodeGpus, ...],
) -> None:
    """Slurm shows no nodes of a job that completes while its epilogue runs on the controller."""
    for state in (JobState.COMPLETING, JobState.RUNNING):
        ends = running(1, "n1", state=state, allocation=allocation, start_s=NOW_S - 1.0, profile=READS)
        assert started(plan("explsched-share", ends, job(2, profile=COMPUTES))) == {2: (NodeGpus("n1", 1, (0,)),)}


def test_gandiva_packs_where_both_together_get_more_done() -> None:
    suits = holding(1, "n1", 0, profile=COMPUTES), holding(2, "n1", 1, profile=READS)
    assert [group.job_ids for group in plan("gandiva", *suits, job(3, profile=READS)).groups] == [(1, 3)]
    unknown = [holding(1, "n1", 0, profile=None), job(2, profile=None)]  # they would slice time: nothing is gained
    assert started(plan("gandiva", *unknown, gpus=1)) == {}
