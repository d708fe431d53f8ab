"""Policies that let jobs share GPUs. Imports matching libraries, which take half a second."""

from __future__ import annotations

from sched_policy.catalog import PolicyOptions
from sched_policy.group.complementary import Complementary
from sched_policy.group.muri import Interleave, InterleaveByWorth
from sched_policy.group.pairs import Opportunistic, Pairs, best_benefit, first_fit
from sched_policy.order import Fifo, LeastAttainedService, Srsf, Srtf
from sched_policy.order.gittins import Gittins
from sched_policy.policies import SHORTEST_FIRST
from sched_policy.policy import JobData, Need, Policy

_GROUPED = Need(JobData.STAGE_TIMES, "jobs without them run alone")
_PAIRED = Need(JobData.STAGE_TIMES, "a pair is taken to run half as fast")


def muri_s(options: PolicyOptions) -> Policy:
    """Muri with known durations."""
    summary = "interleaving groups of up to 4 jobs (Muri), shortest remaining service first"
    return Policy(
        "muri-s", summary, Srsf(), sharing=Interleave(quantum_s=options.quantum_s), needs=(SHORTEST_FIRST, _GROUPED)
    )


def muri_l(options: PolicyOptions) -> Policy:
    """Muri without durations."""
    # In queues, as Tiresias: by continuous attained service jobs would change places, and restart, at every quantum.
    summary = "interleaving groups of up to 4 jobs (Muri), least attained service in few queues first"
    return Policy(
        "muri-l",
        summary,
        LeastAttainedService(options.las_limits_gpu_s, options.starvation),
        sharing=Interleave(quantum_s=options.quantum_s),
        needs=(_GROUPED,),
    )


def explsched_share(options: PolicyOptions) -> Policy:
    """Packing, sharing and order in one: the groups whose progress is worth most."""
    summary = "groups of up to 4 jobs whose progress is worth most, by known or learnt remaining service"
    learnt = Need(JobData.RUN_TIMES, "their length is judged by jobs of the same size submitted just before and after")
    return Policy(
        "explsched-share",
        summary,
        Gittins(),
        sharing=InterleaveByWorth(quantum_s=options.quantum_s),
        needs=(learnt, _GROUPED),
    )


def antman(_options: PolicyOptions) -> Policy:
    """Guaranteed and opportunistic jobs."""
    summary = "opportunistic jobs in the gaps of guaranteed ones (AntMan), in order of submission"
    classes = Need(JobData.PRIORITIES, "all jobs are guaranteed, and none shares a GPU")
    stages = Need(JobData.STAGE_TIMES, "an opportunistic job is taken to run half as fast beside another")
    return Policy("antman", summary, Fifo(), sharing=Opportunistic(), needs=(classes, stages))


def sjf_ffs(_options: PolicyOptions) -> Policy:
    """Pairs by first fit."""
    summary = "shortest job first, pairs share GPUs first-fit"
    return Policy("sjf-ffs", summary, Srtf(), sharing=Pairs(first_fit), needs=(SHORTEST_FIRST, _PAIRED))


def sjf_bsbf(_options: PolicyOptions) -> Policy:
    """Pairs by best benefit."""
    summary = "shortest job first, pairs share GPUs where both gain by it"
    unknown = Need(JobData.RUN_TIMES, "jobs of unknown length come last, in order of submission, and share no GPU")
    return Policy("sjf-bsbf", summary, Srtf(), sharing=Pairs(best_benefit), needs=(unknown, _PAIRED))


def dilu(_options: PolicyOptions) -> Policy:
    """Dilu's placement of jobs that ask for parts of GPUs."""
    summary = "order of submission; parts of GPUs that together use them well (Dilu), requests and limits kept"
    return Policy("dilu", summary, Fifo(), sharing=Complementary())
