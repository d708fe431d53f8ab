"""Every named policy, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sched_policy.backfill import Backfill
from sched_policy.errors import PolicyError
from sched_policy.order.base import Order
from sched_policy.order.fifo import Fifo
from sched_policy.order.shortest import Srsf
from sched_policy.order.utility import ByUtility
from sched_policy.place.balanced import Balanced
from sched_policy.place.simple import Simple
from sched_policy.policy import PayoffAdmission, Policy
from sched_policy.preempt.displace import Displace
from sched_policy.stopping import EarlyStop


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What a site may set about any policy; a policy uses what applies to it.

    Attributes:
        reservation_depth: blocked jobs that are promised a start; None takes the policy's own.
        quantum_s: how far ahead utility looks, and how long a started job is left alone.
        preempt_margin: how many times a victim's score the score of the job that displaces it must be.
        most_preemptions: preemptions per pass at most.
        stop_threshold: share of a sweep's known improvement below which a job may be stopped; 0 never stops.
        silent_order: how jobs that report nothing are ranked, `srsf` or `fifo`.

    """

    reservation_depth: int | None = None
    quantum_s: float = 600.0
    preempt_margin: float = 1.5
    most_preemptions: int = 8
    stop_threshold: float = 0.01
    silent_order: str = "srsf"


def _fifo(options: PolicyOptions) -> Policy:
    return Policy("fifo", "order of submission, EASY backfill", Fifo(), backfill=_depth(options, 1))


def _srsf(options: PolicyOptions) -> Policy:
    return Policy("srsf", "shortest remaining service first, EASY backfill", Srsf(), backfill=_depth(options, 1))


def _simple(options: PolicyOptions) -> Policy:
    return Policy(
        "simple",
        "order of submission, greedy; one job per node, the idle node with the least to spare",
        Fifo(),
        place=Simple(),
        backfill=_depth(options, 0),
    )


def _balanced(options: PolicyOptions) -> Policy:
    return Policy(
        "balanced",
        "order of submission, greedy; the node with the fewest jobs and the most free GPUs",
        Fifo(),
        place=Balanced(),
        backfill=_depth(options, 0),
    )


def _explsched(options: PolicyOptions) -> Policy:
    return Policy(
        "explsched",
        "expected improvement per GPU-second first; preempts and stops jobs that opted in",
        ByUtility(options.quantum_s, _SILENT[options.silent_order]),
        backfill=_depth(options, 1),
        admission=PayoffAdmission(),
        preempt=Displace(
            margin=options.preempt_margin, quantum_s=options.quantum_s, most_at_once=options.most_preemptions
        ),
        stop=EarlyStop(options.stop_threshold),
    )


def _depth(options: PolicyOptions, own: int) -> Backfill:
    return Backfill(own if options.reservation_depth is None else options.reservation_depth)


_SILENT: Mapping[str, Order] = {"srsf": Srsf(), "fifo": Fifo()}
_ROWS: Mapping[str, Callable[[PolicyOptions], Policy]] = {
    "fifo": _fifo,
    "srsf": _srsf,
    "simple": _simple,
    "balanced": _balanced,
    "explsched": _explsched,
}


def names() -> tuple[str, ...]:
    """Names of all policies, in the order in which they are listed to people."""
    return tuple(_ROWS)


def build(name: str, options: PolicyOptions | None = None) -> Policy:
    """The policy of that name. Raises `PolicyError`, naming the nearest known one, if there is none."""
    if name not in _ROWS:
        near = get_close_matches(name, _ROWS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PolicyError(f"unknown policy {name!r}{hint} (known: {', '.join(_ROWS)})")
    options = options or PolicyOptions()
    if options.silent_order not in _SILENT:
        raise PolicyError(f"unknown order {options.silent_order!r} for silent jobs (known: {', '.join(_SILENT)})")
    return _ROWS[name](options)
