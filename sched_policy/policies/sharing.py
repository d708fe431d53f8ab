"""Policies that let jobs share GPUs. Imports matching libraries, which take half a second."""

from __future__ import annotations

from sched_policy.group.antman import Opportunistic
from sched_policy.group.bsbf import Pairs, best_benefit, first_fit
from sched_policy.group.muri import Interleave
from sched_policy.options import PolicyOptions
from sched_policy.order.arrival import Fifo
from sched_policy.order.las import LeastAttainedService
from sched_policy.order.shortest import Srsf, Srtf
from sched_policy.policy import Policy


def muri_s(options: PolicyOptions) -> Policy:
    """Muri with known durations."""
    summary = "interleaving groups of up to 4 jobs (Muri), shortest remaining service first"
    return Policy("muri-s", summary, Srsf(), sharing=Interleave(quantum_s=options.quantum_s))


def muri_l(options: PolicyOptions) -> Policy:
    """Muri without durations."""
    # In queues, as Tiresias: by continuous attained service jobs would change places, and restart, at every quantum.
    summary = "interleaving groups of up to 4 jobs (Muri), least attained service in few queues first"
    return Policy(
        "muri-l",
        summary,
        LeastAttainedService(options.las_limits_gpu_s, options.starvation),
        sharing=Interleave(quantum_s=options.quantum_s),
    )


def antman(_options: PolicyOptions) -> Policy:
    """Guaranteed and opportunistic jobs."""
    summary = "opportunistic jobs in the gaps of guaranteed ones (AntMan), in order of submission"
    return Policy("antman", summary, Fifo(), sharing=Opportunistic())


def sjf_ffs(_options: PolicyOptions) -> Policy:
    """Pairs by first fit."""
    return Policy("sjf-ffs", "shortest job first, pairs share GPUs first-fit", Srtf(), sharing=Pairs(first_fit))


def sjf_bsbf(_options: PolicyOptions) -> Policy:
    """Pairs by best benefit."""
    summary = "shortest job first, pairs share GPUs where both gain by it"
    return Policy("sjf-bsbf", summary, Srtf(), sharing=Pairs(best_benefit))
