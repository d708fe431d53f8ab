"""Every policy and sweep strategy by name, ours and those of other packages, and what a site may set about policies.

A policy is an entry of the entry-point group `explsched.policies`: a callable that takes `PolicyOptions` and returns a
`policy.SchedulingPolicy`. A strategy is one of `explsched.sweep_strategies`: a callable that takes nothing and returns
a `sweep.trials.Strategy`. A package that fails to load harms nobody but those who ask for its entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explsched import entry_points
from explsched.errors import PolicyError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    # A configuration is checked against the names without loading what policies compute with.
    from sched_policy.policy import SchedulingPolicy
    from sched_policy.sweep.trials import Strategy

NO_REPORT_ORDERS = ("srsf", "fifo")
"""Orders for jobs that report nothing."""


class PolicyOptions(Struct, frozen=True):
    """What a site may set about any policy; a policy uses what applies to it.

    Attributes:
        reservation_depth: blocked jobs that are promised a start; None takes the policy's own.
        quantum_s: how far ahead utility looks, how long a started job is left alone, and how long a fair slice is.
        preempt_margin: how many times a victim's score the score of the job that displaces it must be.
        most_preemptions: preemptions per pass at most.
        stop_threshold: share of a sweep's known improvement below which a job may be stopped; 0 never stops.
        stop_leader_threshold: the same for a job that may become the best of its sweep; 0 never stops it.
        stop_least_share: share of its steps a job does before it may be stopped.
        starvation: a waiting job counts as new after this many times its own run time (tiresias); 0 never.
        resize_restart_s: what a restart costs an elastic job, in seconds of its time, where nothing has been measured.
        resize_gain: a running job is resized only if that saves this many times what the restart costs.
        resize_lead_s: an elastic job that runs smaller than it could is asked to save so long before its time limit.
        las_limits_gpu_s: attained service at which a job falls into the next queue (tiresias, muri-l).
        objective: each sweep's `best` model, or the `total` of all improvements, as published (explsched).
        sweep_strategy: who decides inside a sweep, one of `strategies()`.
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


_GROUP = entry_points.POLICIES
_STRATEGIES = entry_points.SWEEP_STRATEGIES

TAKES_TURNS = frozenset({"explsched-share", "muri-s", "muri-l"})
"""Policies whose groups give up their GPUs to each other in rounds: they order and preempt among all jobs at once."""


CHOOSE_NODES = frozenset({"balanced", "dilu", "simple"})
"""Policies for which it matters on which node a job of its own GPUs, or of a part of one, is."""


def names() -> tuple[str, ...]:
    """Names of all policies that can be built: ours first, then those of other packages that load."""
    return (
        *entry_points.own(_GROUP),
        *(name for name, entry in entry_points.others(_GROUP).items() if fault(entry) is None),
    )


def knows(name: str) -> bool:
    """Whether there is a policy of that name. Looks at other packages only if none of ours has it."""
    return name in entry_points.own(_GROUP) or name in names()


def registered_by_others() -> tuple[tuple[str, EntryPoint], ...]:
    """What other packages register, whether it loads or not: (`policy` or `sweep strategy`, entry)."""
    groups = (("policy", _GROUP), ("sweep strategy", _STRATEGIES))
    return tuple((what, entry) for what, group in groups for entry in entry_points.others(group).values())


@cache
def fault(entry: EntryPoint) -> str | None:
    """Why what a package registers cannot be used; None if it loads."""
    try:
        make = entry.load()
    except Exception as error:  # another package's import may raise anything
        return f"{entry.value}: {type(error).__name__}: {error}"
    return None if callable(make) else f"{entry.value}: is not callable"


def build(name: str, options: PolicyOptions | None = None) -> SchedulingPolicy:
    """The policy of that name. Raises `PolicyError`: unknown (naming the nearest known one), or a package's fault."""
    options = options or PolicyOptions()
    for what, found, known in (
        ("order for jobs that report nothing", options.no_report_order, NO_REPORT_ORDERS),
        ("objective", options.objective, entry_points.own(entry_points.OBJECTIVES)),
    ):
        if found not in known:
            raise PolicyError(f"unknown {what} {found!r} (known: {', '.join(known)})")
    if not knows_strategy(options.sweep_strategy):
        raise _unknown("sweep strategy", options.sweep_strategy, strategies())
    policy: SchedulingPolicy
    if entry := entry_points.own(_GROUP).get(name):
        policy = entry.load()(options)
        return policy
    if other := entry_points.others(_GROUP).get(name):
        policy = _of_another_package("policy", other, ("name", "summary", "needs_durations", "plan"), options)
        return policy
    raise _unknown("policy", name, names())


def strategies() -> tuple[str, ...]:
    """Names of all strategies that decide inside a sweep: ours, the default first, then those of other packages."""
    return (*entry_points.own(_STRATEGIES), *entry_points.others(_STRATEGIES))


def knows_strategy(name: str) -> bool:
    """Whether there is a sweep strategy of that name. Looks at other packages only if none of ours has it."""
    return name in entry_points.own(_STRATEGIES) or name in strategies()


def build_strategy(name: str) -> Strategy:
    """The sweep strategy of that name. Raises `PolicyError`: unknown, or a package's fault."""
    strategy: Strategy
    if entry := entry_points.own(_STRATEGIES).get(name):
        strategy = entry.load()()
        return strategy
    if other := entry_points.others(_STRATEGIES).get(name):
        strategy = _of_another_package("sweep strategy", other, ("name", "decide"))
        return strategy
    raise _unknown("sweep strategy", name, strategies())


def _unknown(what: str, name: str, known: Sequence[str]) -> PolicyError:
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return PolicyError(f"unknown {what} {name!r}{hint} (known: {', '.join(known)})")


def _of_another_package(what: str, entry: EntryPoint, parts: Iterable[str], *arguments: object) -> Any:  # noqa: ANN401
    described = f"{what} {entry.name!r} of package {package(entry)!r}"
    if reason := fault(entry):
        raise PolicyError(f"{described} does not load: {reason}")
    try:
        made = entry.load()(*arguments)
    except Exception as error:  # likewise
        raise PolicyError(f"{described} cannot be built: {error!r}") from error
    missing = [part for part in parts if not hasattr(made, part)]
    if missing:
        raise PolicyError(f"{described} lacks {', '.join(missing)}")
    return made


def package(entry: EntryPoint) -> str:
    """The name of the distribution that registers an entry; its target where that is unknown."""
    return entry.dist.name if entry.dist else entry.value
