"""Every policy and sweep strategy by name, ours and those of other packages, and the options of policies.

A policy is an entry of the entry-point group `explsched.policies`: a callable that takes `PolicyOptions` and returns a
`policy.SchedulingPolicy`. A strategy is one of `explsched.sweep_strategies`: a callable that takes nothing and returns
a `sweep.trials.Strategy`. A package that fails to load affects only those who use its entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from explsched import entry_points
from explsched.errors import PolicyError

if TYPE_CHECKING:
    # A configuration is checked against the names without loading the policies' dependencies.
    from sched_policy.policy import SchedulingPolicy

NO_REPORT_ORDERS = ("srsf", "fifo")
"""Orders for jobs that report nothing."""


class PolicyOptions(Struct, frozen=True):
    """The options of policies; each policy uses those that apply to it.

    Attributes:
        reservation_depth: blocked jobs that get a reservation; None takes the policy's own.
        quantum_s: look-ahead of utilities, time before a started job may be preempted, and length of a fair slice.
        preempt_margin: minimum ratio of a job's score to the score of a job that is preempted for it.
        most_preemptions: maximum number of preemptions per pass.
        stop_threshold: share of a sweep's known improvement below which a job may be stopped; 0 never stops.
        stop_leader_threshold: the same for a job that may become the best of its sweep; 0 never stops it.
        stop_least_share: share of its steps that a job must do before it may be stopped.
        starvation: a waiting job counts as new after this many times its own run time (tiresias); 0 never.
        resize_restart_s: cost of a restart of an elastic job, in seconds of its run time, until measured.
        resize_gain: a running job is resized only if that saves this many times the cost of the restart.
        resize_lead_s: an elastic job below its full size is asked to save this long before its time limit.
        las_limits_gpu_s: attained service at which a job is demoted to the next queue (tiresias, muri-l).
        objective: each sweep's `best` model, or the `total` of all improvements, as published (explsched).
        sweep_strategy: the strategy within a sweep, one of `STRATEGIES`.
        no_report_order: how jobs that report nothing are ranked, `srsf` or `fifo`.

    """

    reservation_depth: int | None = None
    quantum_s: float = 600.0
    preempt_margin: float = 1.5
    most_preemptions: int = 8
    stop_threshold: float = 0.05
    stop_leader_threshold: float = 0.0
    stop_least_share: float = 0.1
    starvation: float = 0.0
    resize_restart_s: float = 60.0
    resize_gain: float = 3.0
    resize_lead_s: float = 180.0
    las_limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    no_report_order: str = "srsf"
    objective: str = "best"
    sweep_strategy: str = "adaptive"


POLICIES = entry_points.Registry(
    entry_points.POLICIES, "policy", ("name", "summary", "needs_durations", "plan"), PolicyError
)
"""All policies that can be built: ours first, then those of other packages that load."""
STRATEGIES = entry_points.Registry(entry_points.SWEEP_STRATEGIES, "sweep strategy", ("name", "decide"), PolicyError)
"""Sweep strategies, the default first."""

TAKES_TURNS = frozenset({"explsched-share", "muri-s", "muri-l"})
"""Policies whose groups take turns on GPUs in rounds: they order and preempt among all jobs at once."""
CHOOSE_NODES = frozenset({"balanced", "dilu", "simple"})
"""Policies that choose the nodes of jobs, with whole GPUs or with a part of one."""
PIN_JOBS = CHOOSE_NODES | TAKES_TURNS | {"antman", "gandiva", "sjf-bsbf", "sjf-ffs"}
"""Policies under which waiting jobs are pinned to their planned nodes."""


def build(name: str, options: PolicyOptions | None = None) -> SchedulingPolicy:
    """The policy of that name. Raises `PolicyError`: unknown (naming the nearest known one), or a package's fault."""
    options = options or PolicyOptions()
    for what, found, known in (
        ("order for jobs that report nothing", options.no_report_order, NO_REPORT_ORDERS),
        ("objective", options.objective, entry_points.own(entry_points.OBJECTIVES)),
    ):
        if found not in known:
            raise PolicyError(f"unknown {what} {found!r} (known: {', '.join(known)})")
    STRATEGIES.check(options.sweep_strategy)
    policy: SchedulingPolicy = POLICIES.build(name, options)
    return policy
