"""The quirks of Muri's simulator, each on a trace small enough to compute by hand."""

import json
import os
import subprocess
import sys
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from explsched.errors import PolicyError
from sched_policy.group.interleave import iteration_s
from sched_policy.model import StageProfile
from simulation import muri
from simulation.finish_time import Claims
from simulation.muri.loop import MuriJob, overhead_s
from simulation.muri.themis import Themis, early
from simulation.traces.trace import ClusterShape, StageTimes, Trace, TraceError
from tests.simulation.muri_jobs import generated, job, model_job, record

STAGES = StageTimes(0.5, 0.4, 0.1)


def test_a_job_alone_takes_its_iterations_times_1015_and_no_overhead() -> None:
    outcome = muri.simulate(Trace.of([job(1, 20.0, 1, 100)]), ClusterShape(1, 1), "srtf")
    assert record(outcome, 1).end_s == pytest.approx(20 + 101.5)
    assert record(outcome, 1).held_s == pytest.approx(101.5)
    assert outcome.events == 2


def test_overhead_is_charged_at_every_event_to_every_running_job() -> None:
    """Three arrivals that change nothing: at 50 and 70 ten seconds are lost, at 75 all five since then."""
    later = [job(2, 50.0, 1, 1000), job(3, 70.0, 1, 1000), job(4, 75.0, 1, 1000)]
    outcome = muri.simulate(Trace.of([job(1, 0.0, 1, 100), *later]), ClusterShape(1, 1), "srtf")
    assert record(outcome, 1).end_s == pytest.approx(101.5 + 10 + 10 + 5)
    assert record(outcome, 2).start_s == record(outcome, 1).end_s


def test_overhead_depends_on_model_and_gpus() -> None:
    assert (overhead_s("a2c", 1), overhead_s("a2c", 8), overhead_s("dqn", 32)) == (38, 46, 8)
    assert (overhead_s("unknown", 1), overhead_s("vgg16", 3)) == (10, 10)


def test_ties_keep_their_order_and_new_jobs_lose_them() -> None:
    """Job 7 has not advanced when its equal arrives: the overhead has eaten the first five seconds."""
    outcome = muri.simulate(Trace.of([job(7, 0.0, 1, 100), job(1, 5.0, 1, 100)]), ClusterShape(1, 1), "srtf")
    assert record(outcome, 7).end_s == pytest.approx(5 + 101.5)
    assert record(outcome, 7).preemptions == 0
    assert record(outcome, 1).start_s == record(outcome, 7).end_s


def test_completions_within_a_billionth_are_one_event_at_the_time_of_the_first_in_the_list() -> None:
    """Job 1 comes later in the order of remaining time, so job 2 leads, and job 1 ends with it."""
    trace = Trace.of([job(1, 0.0, 1, 1e6 * (1 + 5e-10)), job(2, 0.0, 1, 1e6)])
    outcome = muri.simulate(trace, ClusterShape(1, 2), "srtf")
    assert outcome.events == 2
    assert record(outcome, 1).end_s == record(outcome, 2).end_s == pytest.approx(1.015e6, rel=1e-12)


def test_srtf_looks_at_time_and_srsf_at_service() -> None:
    trace = Trace.of([job(1, 0.0, 4, 100), job(2, 0.0, 1, 200)])
    by_time = muri.simulate(trace, ClusterShape(1, 4), "srtf")
    by_service = muri.simulate(trace, ClusterShape(1, 4), "srsf")
    assert (record(by_time, 1).start_s, record(by_service, 2).start_s) == (0.0, 0.0)
    assert record(by_time, 2).start_s == pytest.approx(101.5)
    assert record(by_service, 1).start_s == pytest.approx(203.0)


def test_preemption_is_free() -> None:
    outcome = muri.simulate(Trace.of([job(1, 0.0, 1, 1000), job(2, 100.0, 1, 10)]), ClusterShape(1, 1), "srtf")
    assert record(outcome, 2).end_s == pytest.approx(110.15)
    assert record(outcome, 1).preemptions == 1
    # One overhead at its preemption; the restart itself costs nothing.
    assert record(outcome, 1).end_s == pytest.approx(1015 + 10.15 + 10)


def test_yarn_keeps_a_job_on_one_node_and_tiresias_does_not() -> None:
    trace = Trace.of([job(1, 0.0, 3, 100), job(2, 0.0, 3, 100), job(3, 0.0, 2, 1000)])
    assert record(muri.simulate(trace, ClusterShape(2, 4), "srtf"), 3).start_s == pytest.approx(101.5)
    assert record(muri.simulate(trace, ClusterShape(2, 4), "tiresias"), 3).start_s == 0.0


def test_large_jobs_take_idle_nodes_and_the_rest_on_another() -> None:
    trace = Trace.of([job(1, 0.0, 1, 50), job(2, 0.0, 6, 100), job(3, 0.0, 6, 200)])
    outcome = muri.simulate(trace, ClusterShape(3, 4), "srtf")
    assert record(outcome, 2).start_s == 0.0  # one idle node, and two GPUs beside job 1
    assert record(outcome, 3).start_s == pytest.approx(50.75)  # one idle node was left, but one GPU beside it
    assert outcome.usage[0].busy_gpus == 7
    assert outcome.usage[0].idle_node_gpus == 4


def test_tiresias_demotes_at_whole_seconds_of_run_time() -> None:
    outcome = muri.simulate(Trace.of([job(1, 0.5, 4, 5000), job(2, 1.0, 4, 5000)]), ClusterShape(1, 4), "tiresias")
    demotion_s = 0.5 + ceil(3250 / 4)
    assert record(outcome, 2).start_s == demotion_s  # in the first queue, before job 1 in the second
    second_s = demotion_s + ceil(3250 / 4)  # then job 2 enters the second queue, behind job 1
    third_s = second_s + ceil(7200 / 4) - ceil(3250 / 4)
    assert [usage.time_s for usage in outcome.usage[:6]] == pytest.approx(
        [0.5, 1.0, demotion_s, second_s, third_s, third_s + ceil(7200 / 4) - ceil(3250 / 4)]
    )
    assert record(outcome, 1).preemptions == 2


def test_tiresias_does_not_displace_a_running_job_for_an_older_one_of_its_queue() -> None:
    trace = Trace.of([job(1, 0.0, 1, 100), job(2, 1.0, 2, 100), job(3, 2.0, 1, 200)])
    outcome = muri.simulate(trace, ClusterShape(1, 2), "tiresias")
    assert record(outcome, 3).start_s == 2.0
    assert record(outcome, 3).preemptions == 0
    assert record(outcome, 2).start_s == record(outcome, 3).end_s


def _descending(claims: Claims, _iteration_s: np.ndarray) -> np.ndarray:
    return np.linspace(1.0, 0.5, len(claims.gpus))


def test_themis_places_the_chosen_jobs_again_and_one_may_not_fit() -> None:
    """In order 4, 3, 3, 4, 3, 3 fill two nodes of ten; largest first the threes no longer fit."""
    themis = Themis(ClusterShape(2, 10), _descending)
    for index, gpus in enumerate([4, 3, 3, 4, 3, 3]):
        themis.arrive(MuriJob.of(index, job(index, 0.0, gpus, 100)))
    assert [chosen.index for chosen in themis.schedule(0.0)] == [0, 3, 1, 2, 4]
    assert themis.busy_gpus == 17


def test_themis_prefers_jobs_that_never_ran_then_those_that_received_least() -> None:
    trace = Trace.of([job(1, 0.0, 1, 1000), job(2, 100.0, 1, 1000), job(3, 300.0, 1, 1000)])
    outcome = muri.simulate(trace, ClusterShape(1, 1), "themis")
    assert [record(outcome, number).start_s for number in (1, 2, 3)] == [0.0, 100.0, 300.0]


def test_themis_without_a_solver_gives_whole_shares_so_the_least_served_job_runs() -> None:
    trace = Trace.of([job(1, 0.0, 1, 1000), job(2, 100.0, 1, 1000), job(3, 150.0, 1, 1)])
    outcome = muri.simulate(trace, ClusterShape(1, 1), "themis", muri.MuriOptions(shares=muri.Shares.WHOLE))
    assert record(outcome, 3).start_s == 150.0
    # At 151.015 job 1 has had 100 s and job 2 has had 50 s.
    assert record(outcome, 2).preemptions == 1
    assert record(outcome, 2).end_s < record(outcome, 1).end_s


def test_themis_with_early_shares_prefers_larger_jobs_and_slower_iterations() -> None:
    """Optimal shares fall with the GPUs, and do not depend on how long an iteration takes."""
    trace = Trace.of([job(1, 0.0, 1, 1000), job(2, 0.0, 2, 1000), job(3, 0.0, 4, 100), job(4, 0.0, 4, 1000)])
    plain = muri.simulate(trace, ClusterShape(1, 4), "themis")
    early = muri.simulate(trace, ClusterShape(1, 4), "themis", muri.MuriOptions(shares=muri.Shares.EARLY))
    assert record(plain, 1).start_s == record(plain, 2).start_s == 0.0
    assert sorted((1, 2, 3, 4), key=lambda number: record(early, number).start_s)[:2] == [4, 3]


def test_themis_by_a_solver_follows_what_the_optimum_pins() -> None:
    """Both give the least served job its GPU: the job at the maximum of rho has one share in every optimum."""
    trace = Trace.of([job(1, 0.0, 1, 1000), job(2, 100.0, 1, 1000), job(3, 150.0, 1, 50), job(4, 400.0, 2, 200)])
    solved = muri.simulate(trace, ClusterShape(1, 2), "themis", muri.MuriOptions(shares=muri.Shares.SOLVER))
    plain = muri.simulate(trace, ClusterShape(1, 2), "themis")
    assert [one.start_s for one in solved.jobs] == [one.start_s for one in plain.jobs]
    assert [one.end_s for one in solved.jobs] == pytest.approx([one.end_s for one in plain.jobs], rel=0.1)


def test_a_solver_that_is_not_installed_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(PolicyError, match=r"explsched\[exact\]"):
        muri.simulate(
            Trace.of([job(1, 0.0, 1, 10)]),
            ClusterShape(1, 1),
            "themis",
            muri.MuriOptions(shares=muri.Shares.SOLVER),
        )


def test_early_shares_fill_the_cluster_and_follow_gpus_and_iteration_time() -> None:
    claims = Claims(np.zeros(3), np.full(3, 500.0), np.full(3, 900.0), np.array([1.0, 1.0, 8.0]), 64.0)
    shares = early(claims, np.array([0.1, 0.2, 0.1]))
    assert claims.gpus @ shares == pytest.approx(64.0)
    assert shares / shares[0] == pytest.approx([1.0, 2.0**1.02, 8.0**0.77])


def test_antman_reserves_gpus_for_guaranteed_jobs() -> None:
    """Job 2 holds the last GPU from 1 s on, so job 3 waits although a GPU is idle; both start when job 1 ends."""
    trace = Trace.of([job(1, 0.0, 3, 100), job(2, 1.0, 2, 1000), job(3, 2.0, 1, 10)])
    outcome = muri.simulate(trace, ClusterShape(1, 4), "antman")
    assert record(outcome, 2).start_s == record(outcome, 3).start_s == record(outcome, 1).end_s
    assert outcome.usage[2].busy_gpus == 3
    assert outcome.usage[2].idle_node_gpus == 0


def test_antman_starts_a_gang_whose_remainder_is_on_a_node_that_another_wants_whole() -> None:
    """Job 2 has node 2 and wants node 1; job 3 wants a whole node, too, and must not hold what is free of node 1."""
    trace = Trace.of([job(1, 0.0, 4, 100), job(2, 1.0, 16, 100), job(3, 2.0, 12, 100)])
    outcome = muri.simulate(trace, ClusterShape(2, 8), "antman")
    assert record(outcome, 2).start_s == record(outcome, 1).end_s
    assert record(outcome, 3).start_s == record(outcome, 2).end_s


def test_antman_slows_opportunistic_jobs_beside_started_guaranteed_ones() -> None:
    """On a reserved GPU the opportunistic job runs at its own pace, beside a started job at that job's."""
    trace = Trace.of(
        [
            job(1, 0.0, 1, 100, stages=STAGES),
            job(2, 0.0, 2, 1000, stages=STAGES),
            job(3, 0.0, 1, 50, stages=STAGES, priority=1),
        ]
    )
    outcome = muri.simulate(trace, ClusterShape(1, 2), "antman")
    # Job 2 reserves the second GPU (0.09); job 1 runs on the first (0.10): job 3 goes to the second.
    assert record(outcome, 3).start_s == 0.0
    assert record(outcome, 3).end_s == pytest.approx(50 * 1.015)
    beside = muri.simulate(Trace.of([trace.jobs[0], trace.jobs[2]]), ClusterShape(1, 1), "antman")
    # Reading 0.5 fills a gap of 0.5; computing 0.4 one of 0.6, ending before the other's reading; no talk is left.
    assert record(beside, 3).end_s == pytest.approx(50 * 2 * 1.015)


@pytest.mark.parametrize(("own", "guaranteed"), [(None, None), (STAGES, None), (None, STAGES)])
def test_antman_takes_an_opportunistic_job_to_run_half_as_fast_where_stage_times_are_missing(
    own: StageTimes | None, guaranteed: StageTimes | None
) -> None:
    """As its warning says. It ran at full pace."""
    trace = Trace.of([job(1, 0.0, 1, 100, stages=guaranteed), job(2, 0.0, 1, 30, stages=own, priority=1)])
    outcome = muri.simulate(trace, ClusterShape(1, 1), "antman")
    assert record(outcome, 2).end_s == pytest.approx(30 * 2 * 1.015)


def test_antman_puts_one_opportunistic_job_on_a_gpu_and_never_preempts() -> None:
    trace = Trace.of([job(1, 0.0, 1, 100, priority=1), job(2, 0.0, 1, 10, priority=1), job(3, 0.0, 1, 10)])
    outcome = muri.simulate(trace, ClusterShape(1, 1), "antman")
    assert record(outcome, 3).start_s == record(outcome, 1).start_s == 0.0
    assert record(outcome, 2).start_s == record(outcome, 1).end_s


def test_muri_runs_complementary_jobs_on_one_gpu() -> None:
    reader, computer = model_job(1, "a2c", 1, 1000), model_job(2, "gpt2", 1, 2000)
    outcome = muri.simulate(Trace.of([reader, computer]), ClusterShape(1, 1), "muri-s")
    members = [
        StageProfile(job.iteration_s * 1.015, job.stages.io_s, job.stages.gpu_s, job.stages.net_s)
        for job in (reader, computer)
        if job.stages
    ]
    grouped_iteration_s = iteration_s(members)
    assert record(outcome, 1).start_s == record(outcome, 2).start_s == 0.0
    assert record(outcome, 1).end_s == pytest.approx(1000 * grouped_iteration_s)
    left = (
        2000 - (1000 * grouped_iteration_s - 38 - 10) / grouped_iteration_s
    )  # the group is charged the overheads of both
    assert record(outcome, 2).end_s == pytest.approx(1000 * grouped_iteration_s + left * 0.426 * 1.015)


def test_muri_groups_only_for_lack_of_gpus_and_only_equal_sizes() -> None:
    jobs = [model_job(1, "a2c", 1, 1000), model_job(2, "gpt2", 1, 1000)]
    outcome = muri.simulate(Trace.of(jobs), ClusterShape(1, 2), "muri-s")
    assert record(outcome, 2).end_s == pytest.approx(1000 * 0.426 * 1.015)
    mixed = muri.simulate(
        Trace.of([model_job(1, "a2c", 1, 1000), model_job(2, "gpt2", 2, 1000)]), ClusterShape(1, 2), "muri-s"
    )
    assert record(mixed, 2).start_s == record(mixed, 1).end_s


def test_muri_admits_four_jobs_for_each_place() -> None:
    trace = Trace.of([model_job(number, "a2c", 1, 1000.0 * number) for number in range(1, 7)])
    outcome = muri.simulate(trace, ClusterShape(1, 1), "muri-s")
    assert (outcome.usage[0].running_jobs, outcome.usage[0].pending_jobs) == (4, 2)
    assert record(outcome, 5).start_s == record(outcome, 1).end_s


@pytest.mark.parametrize("policy", ["muri-s", "muri-l", "explsched-share"])
@pytest.mark.parametrize("grouping", muri.Grouping)
def test_jobs_without_stage_times_run_alone(policy: str, grouping: muri.Grouping) -> None:
    """They were taken to be all computation, and packed at a loss."""
    trace = Trace.of([*(job(n, 0.0, 1, 1000.0 + n) for n in range(6)), *(model_job(n, "bert", 1, 1e4) for n in (6, 7))])
    outcome = muri.simulate(trace, ClusterShape(1, 2), policy, muri.MuriOptions(grouping=grouping))
    overheads_s = 10.0 * outcome.events
    assert all(done.held_s <= done.run_s + overheads_s for done in (record(outcome, n) for n in range(6)))


def test_autopack_splits_groups_that_do_not_pay() -> None:
    trace = Trace.of([model_job(1, "gpt2", 1, 1000), model_job(2, "gpt2", 1, 2000)])
    together = muri.simulate(trace, ClusterShape(1, 1), "muri-s")
    apart = muri.simulate(trace, ClusterShape(1, 1), "muri-s", muri.MuriOptions(autopack=True))
    assert record(together, 2).start_s == 0.0
    assert record(apart, 2).start_s == record(apart, 1).end_s == pytest.approx(1000 * 0.426 * 1.015)


def test_muri_s_starts_from_the_declared_duration_and_muri_l_from_nothing() -> None:
    short = job(1, 0.0, 2, 100, declared_s=9000.0)
    long = job(2, 0.0, 1, 1000, declared_s=10.0)
    by_declaration = muri.simulate(Trace.of([short, long]), ClusterShape(1, 2), "muri-s")
    assert record(by_declaration, 1).start_s == record(by_declaration, 2).end_s
    attained = muri.simulate(Trace.of([short, long]), ClusterShape(1, 2), "muri-l")
    assert record(attained, 1).start_s == 0.0


def test_unknown_policies_and_impossible_jobs_are_named() -> None:
    with pytest.raises(PolicyError, match=r"unknown policy 'sjf' \(known under the muri conventions: srtf, srsf"):
        muri.simulate(Trace.of([]), ClusterShape(1, 1), "sjf")
    with pytest.raises(TraceError, match=r"job 5 asks for 3 GPUs \(accepted: 1 to 2"):
        muri.simulate(Trace.of([job(5, 0.0, 3, 1)]), ClusterShape(1, 2), "srtf")


@pytest.mark.parametrize("policy", muri.names())
def test_every_job_does_its_work_and_no_gpu_is_over_committed(policy: str) -> None:
    trace = generated(120)
    outcome = muri.simulate(trace, ClusterShape(8, 8), policy)
    assert len(outcome.jobs) == 120
    for done in outcome.jobs:
        assert done.submit_s <= done.start_s < done.end_s < float("inf")
        # A group's iteration can be shorter than a member's own, as computed; the others never speed a job up.
        assert policy.startswith("muri-") or done.held_s >= done.run_s * (1 - 1e-6)
    assert all(0 <= usage.busy_gpus <= 64 for usage in outcome.usage)
    assert all(usage.busy_gpus + (usage.idle_node_gpus or 0) <= 64 for usage in outcome.usage)
    assert [usage.time_s for usage in outcome.usage] == sorted(usage.time_s for usage in outcome.usage)
    assert outcome.usage[-1].running_jobs == outcome.usage[-1].pending_jobs == 0


_SCRIPT = """
import json
from simulation import muri
from simulation.traces.trace import ClusterShape
from tests.simulation.muri_jobs import generated
ends = {policy: [job.end_s for job in muri.simulate(generated(60), ClusterShape(8, 8), policy).jobs]
        for policy in muri.names()}
print(json.dumps(ends))
"""


def test_hash_seeds_change_nothing() -> None:
    root = Path(__file__).parents[2]
    results = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        argv = [sys.executable, "-c", _SCRIPT]
        done = subprocess.run(argv, env=environment, cwd=root, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout))
    assert results[0] == results[1]
