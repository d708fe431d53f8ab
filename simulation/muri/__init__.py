"""The conventions and quirks of Muri's simulator (Rivendile/Muri), to check our policies against published figures.

Preemption is free, restart overhead is charged at every event, iterations take 1.5 % longer than the trace says.
To choose a policy for a site, use the `slurm` conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from explsched.errors import PolicyError
from sched_policy.group.interleave import Ordering
from simulation.muri.loop import Discipline, replay
from simulation.results.outcome import TraceOutcome
from simulation.traces.trace import ClusterShape, Trace

if TYPE_CHECKING:
    from simulation.muri.interleaved import Sorting


class Shares(StrEnum):
    """The optimum leaves some shares open; the original's come from one of two solvers, or are 1 where both fail."""

    CENTRAL = "central"  # in the middle of all optimal ones, like an interior-point solver's
    EARLY = "early"  # of its second solver, which stops early with thousands of jobs
    WHOLE = "whole"  # the original's last resort
    SOLVER = "solver"  # of a convex solver (cvxpy)


class Grouping(StrEnum):
    """How the jobs that share GPUs are chosen."""

    MATCHING = "matching"
    IN_ORDER = "in-order"  # those that follow each other: an ablation of the paper


class Durations(StrEnum):
    """What `explsched-share` knows of how long jobs take."""

    KNOWN = "known"  # as Muri-S does
    LEARNT = "learnt"  # nothing, as Muri-L: it learns from the jobs that have ended


class MuriOptions(Struct, frozen=True):
    """The flags of the original.

    Attributes:
        autopack: split groups that do not pay. The published figures of trace1 to trace2_pr were made without it, those
            by job type (the paper's figure 13) with it.
        max_members: jobs per group at most (Muri).
        shares: which time shares decide (Themis).
        durations: what is known of them (explsched-share).
        ordering: how the stages of a group are put in order (Muri); the worst is an ablation of the paper.
        grouping: how groups are chosen (Muri).

    """

    autopack: bool = False
    max_members: int = 4
    ordering: Ordering = Ordering.BEST
    grouping: Grouping = Grouping.MATCHING
    shares: Shares = Shares.CENTRAL
    durations: Durations = Durations.KNOWN


# Each policy imports its own module: SRTF should not wait for Themis' numpy, nor for Muri's matching.


def _srtf(cluster: ClusterShape, _options: MuriOptions) -> Discipline:
    from simulation.muri.preemptive import Shortest, remaining_s

    return Shortest(cluster, remaining_s)


def _srsf(cluster: ClusterShape, _options: MuriOptions) -> Discipline:
    from simulation.muri.preemptive import Shortest, remaining_gpu_s

    return Shortest(cluster, remaining_gpu_s)


def _tiresias(cluster: ClusterShape, _options: MuriOptions) -> Discipline:
    from simulation.muri.preemptive import Tiresias

    return Tiresias(cluster)


def _antman(cluster: ClusterShape, _options: MuriOptions) -> Discipline:
    from simulation.muri.antman import AntMan

    return AntMan(cluster)


def _muri_s(cluster: ClusterShape, options: MuriOptions) -> Discipline:
    from simulation.muri.interleaved import MURI_S

    return _muri(cluster, options, MURI_S)


def _muri_l(cluster: ClusterShape, options: MuriOptions) -> Discipline:
    from simulation.muri.interleaved import MURI_L

    return _muri(cluster, options, MURI_L)


def _muri(cluster: ClusterShape, options: MuriOptions, sorting: Sorting) -> Discipline:
    from simulation.muri import interleaved
    from simulation.muri.interleaved import InOrder
    from simulation.muri.matching import ManyJobs

    grouper = {Grouping.MATCHING: ManyJobs, Grouping.IN_ORDER: InOrder}[options.grouping]
    packing = interleaved.autopack if options.autopack else interleaved.keep_all
    return interleaved.Muri(cluster, sorting, packing, grouper(options.max_members, options.ordering))


def _themis(cluster: ClusterShape, options: MuriOptions) -> Discipline:
    from simulation.muri import themis

    solve: Mapping[Shares, themis.Solve] = {
        Shares.CENTRAL: themis.central,
        Shares.EARLY: themis.early,
        Shares.WHOLE: themis.whole,
        Shares.SOLVER: themis.solved,
    }
    return themis.Themis(cluster, solve[options.shares])


def _share(cluster: ClusterShape, options: MuriOptions) -> Discipline:
    from simulation.muri.share import KnownLengths, LearntLengths, Share

    lengths = KnownLengths() if options.durations is Durations.KNOWN else LearntLengths()
    return Share(cluster, lengths, options.max_members)


_POLICIES: Mapping[str, Callable[[ClusterShape, MuriOptions], Discipline]] = {
    "srtf": _srtf,
    "srsf": _srsf,
    "tiresias": _tiresias,
    "antman": _antman,
    "themis": _themis,
    "muri-s": _muri_s,
    "muri-l": _muri_l,
    "explsched-share": _share,
}


def names() -> tuple[str, ...]:
    """The policies that can be replayed under these conventions."""
    return tuple(_POLICIES)


def check(policy: str) -> None:
    """Raise `PolicyError` for a policy that cannot be replayed under these conventions."""
    if policy not in _POLICIES:
        raise PolicyError(f"unknown policy {policy!r} (known under the muri conventions: {', '.join(_POLICIES)})")


def simulate(trace: Trace, cluster: ClusterShape, policy: str, options: MuriOptions | None = None) -> TraceOutcome:
    """Replay a trace. Raises `PolicyError` for an unknown policy, `TraceError` for jobs that can never run."""
    check(policy)
    return replay(policy, trace, cluster, _POLICIES[policy](cluster, options or MuriOptions()))
