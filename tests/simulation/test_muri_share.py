"""`explsched-share` under the conventions of Muri's simulator."""

from __future__ import annotations

from math import exp, log
from statistics import fmean

import pytest

from simulation import muri
from simulation.muri import Durations, MuriOptions
from simulation.traces.trace import ClusterShape, Trace
from tests.simulation.muri_jobs import generated, job, model_job, record

SHARE = "explsched-share"
LEARNT = MuriOptions(durations=Durations.LEARNT)


def mean_jct_s(trace: Trace, policy: str, options: MuriOptions | None = None) -> float:
    outcome = muri.simulate(trace, ClusterShape(4, 8), policy, options)
    assert sorted(done.job_id for done in outcome.jobs) == sorted(one.job_id for one in trace.jobs)
    return fmean(done.end_s - done.submit_s for done in outcome.jobs)


def test_a_short_job_does_not_share_with_a_long_one_that_does_not_suit_it() -> None:
    trace = Trace.of([model_job(0, "gpt2", 1, 1_000_000.0), model_job(1, "gpt2", 1, 100.0)])
    outcome = muri.simulate(trace, ClusterShape(1, 1), SHARE)
    alone_s = 100.0 * next(one for one in trace.jobs if one.job_id == 1).iteration_s * 1.015
    assert record(outcome, 1).end_s == pytest.approx(alone_s, rel=0.1)


def test_equal_jobs_that_suit_each_other_share() -> None:
    trace = Trace.of([model_job(0, "gpt2", 1, 100_000.0), model_job(1, "dqn", 1, 90_000.0)])
    share, srsf = (muri.simulate(trace, ClusterShape(1, 1), policy) for policy in (SHARE, "srsf"))
    assert max(done.end_s for done in share.jobs) < 0.9 * max(done.end_s for done in srsf.jobs)


@pytest.mark.parametrize("options", [MuriOptions(), LEARNT, MuriOptions(max_members=1)])
def test_one_job_takes_its_time(options: MuriOptions) -> None:
    outcome = muri.simulate(Trace.of([job(0, 5.0, 2, 1000.0)]), ClusterShape(1, 2), SHARE, options)
    assert record(outcome, 0).end_s == pytest.approx(5.0 + 1015.0)


def test_learnt_lengths_put_a_job_behind_whose_neighbours_were_long() -> None:
    # Jobs of one GPU were long, those of two were short; two of each kind arrive together then.
    past = [job(i, 0.0, 1, 50_000.0) for i in range(4)] + [job(4 + i, 0.0, 2, 100.0) for i in range(4)]
    late = [job(8, 300_000.0, 1, 50_000.0), job(9, 300_000.0, 2, 100.0)]
    outcome = muri.simulate(Trace.of([*past, *late]), ClusterShape(1, 2), SHARE, LEARNT)
    assert record(outcome, 9).end_s < 300_000.0 + 200.0
    assert record(outcome, 8).start_s >= record(outcome, 9).end_s


def test_it_beats_its_rivals_of_equal_knowledge_on_generated_traces() -> None:
    """Not the published traces: the same models and sizes, other arrivals and lengths. Lengths of neighbours are random
    here, so nothing can be learnt but the distribution."""
    traces = [generated(150, seed) for seed in range(3)]
    known = [mean_jct_s(trace, "muri-s") / mean_jct_s(trace, SHARE) for trace in traces]
    learnt = [mean_jct_s(trace, "muri-l") / mean_jct_s(trace, SHARE, LEARNT) for trace in traces]
    assert exp(fmean(map(log, known))) > 1.0
    assert exp(fmean(map(log, learnt))) > 1.0
