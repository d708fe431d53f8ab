"""Every named policy, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sched_policy import plugins
from sched_policy.backfill import ALL, Backfill
from sched_policy.errors import PolicyError
from sched_policy.group.base import Sharing
from sched_policy.group.bsbf import Pairs, best_benefit, first_fit
from sched_policy.group.guarantee import Opportunistic
from sched_policy.order.base import Order
from sched_policy.order.fair import Fair
from sched_policy.order.fifo import Fifo
from sched_policy.order.finish_time import FinishTimeFair
from sched_policy.order.las import LeastAttainedService
from sched_policy.order.multifactor import Multifactor
from sched_policy.order.shortest import Srsf, Srtf
from sched_policy.order.slaq import Slaq
from sched_policy.order.utility import ByUtility
from sched_policy.place.balanced import Balanced
from sched_policy.place.simple import Simple
from sched_policy.policy import PayoffAdmission, Policy, SchedulingPolicy
from sched_policy.preempt.displace import Displace
from sched_policy.stopping import EarlyStop


@dataclass(frozen=True, slots=True)
class PolicyOptions:
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
        silent_order: how jobs that report nothing are ranked, `srsf` or `fifo`.

    """

    reservation_depth: int | None = None
    quantum_s: float = 600.0
    preempt_margin: float = 1.5
    most_preemptions: int = 8
    stop_threshold: float = 0.05
    stop_leader_threshold: float = 0.0
    stop_least_share: float = 0.1
    starvation: float = 0.0
    silent_order: str = "srsf"


def _fifo(options: PolicyOptions) -> Policy:
    return Policy("fifo", "order of submission, EASY backfill", Fifo(), backfill=_depth(options, 1))


def _srtf(options: PolicyOptions) -> Policy:
    return _preemptive("srtf", "shortest remaining time first, preemptive", Srtf(), options)


def _srsf(options: PolicyOptions) -> Policy:
    return _preemptive("srsf", "shortest remaining service (time x GPUs) first, preemptive", Srsf(), options)


def _tiresias(options: PolicyOptions) -> Policy:
    order = LeastAttainedService(starvation=options.starvation)
    return _preemptive("tiresias", "least attained service in few queues (2D-LAS), preemptive", order, options)


def _slurm(options: PolicyOptions) -> Policy:
    backfill = Backfill(
        ALL if options.reservation_depth is None else options.reservation_depth, queue_depth=500, window_s=86_400.0
    )  # bf_max_job_test and bf_window as Slurm has them by default
    return Policy("slurm", "Slurm's own: multifactor priority, conservative backfill", Multifactor(), backfill=backfill)


def _themis(options: PolicyOptions) -> Policy:
    return _preemptive("themis", "finish-time fairness (Themis), preemptive", FinishTimeFair(), options)


def _preemptive(name: str, summary: str, order: Order, options: PolicyOptions) -> Policy:
    """Rank decides alone, as published: who is better displaces who is worse once that one had its quantum."""
    displace = Displace(margin=1.0, least_share=0.0, quantum_s=options.quantum_s, most_at_once=options.most_preemptions)
    return Policy(name, summary, order, backfill=_depth(options, 0), preempt=displace)


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
        stop=EarlyStop(options.stop_threshold, options.stop_leader_threshold, options.stop_least_share),
    )


def _fair(options: PolicyOptions) -> Policy:
    summary = "equal GPU time for all jobs, a slice at a time, preemptive"
    return _preemptive("fair", summary, Fair(options.quantum_s), options)


def _slaq(options: PolicyOptions) -> Policy:
    summary = "largest predicted normalised loss reduction per GPU-second first, preemptive"
    return _preemptive("slaq", summary, Slaq(options.quantum_s), options)


def _muri_s(options: PolicyOptions) -> Policy:
    summary = "interleaving groups of up to 4 jobs (Muri), shortest remaining service first"
    return Policy("muri-s", summary, Srsf(), sharing=_interleaving(options))


def _muri_l(options: PolicyOptions) -> Policy:
    # In queues, as Tiresias: by continuous attained service jobs would change places, and restart, at every quantum.
    summary = "interleaving groups of up to 4 jobs (Muri), least attained service in few queues first"
    return Policy(
        "muri-l",
        summary,
        LeastAttainedService(starvation=options.starvation),
        sharing=_interleaving(options),
    )


def _interleaving(options: PolicyOptions) -> Sharing:
    from sched_policy.group.muri import Interleave  # half a second of matching libraries, for these rows alone

    return Interleave(quantum_s=options.quantum_s)


def _antman(_options: PolicyOptions) -> Policy:
    summary = "opportunistic jobs in the gaps of guaranteed ones (AntMan), in order of submission"
    return Policy("antman", summary, Fifo(), sharing=Opportunistic())


def _sjf_ffs(_options: PolicyOptions) -> Policy:
    return Policy("sjf-ffs", "shortest job first, pairs share GPUs first-fit", Srtf(), sharing=Pairs(first_fit))


def _sjf_bsbf(_options: PolicyOptions) -> Policy:
    summary = "shortest job first, pairs share GPUs where both gain by it"
    return Policy("sjf-bsbf", summary, Srtf(), sharing=Pairs(best_benefit))


def _depth(options: PolicyOptions, own: int) -> Backfill:
    return Backfill(own if options.reservation_depth is None else options.reservation_depth)


_SILENT: Mapping[str, Order] = {"srsf": Srsf(), "fifo": Fifo()}
_ROWS: Mapping[str, Callable[[PolicyOptions], Policy]] = {
    "slurm": _slurm,
    "fifo": _fifo,
    "srtf": _srtf,
    "srsf": _srsf,
    "tiresias": _tiresias,
    "themis": _themis,
    "muri-s": _muri_s,
    "muri-l": _muri_l,
    "antman": _antman,
    "sjf-ffs": _sjf_ffs,
    "sjf-bsbf": _sjf_bsbf,
    "simple": _simple,
    "balanced": _balanced,
    "explsched": _explsched,
    "fair": _fair,
    "slaq": _slaq,
}


def names() -> tuple[str, ...]:
    """Names of all policies that can be built, in the order in which they are listed to people."""
    return (*_ROWS, *(plugin.name for plugin in _usable_plugins()))


def knows(name: str) -> bool:
    """Whether there is a policy of that name. Looks for plugins only if none of ours has it."""
    return name in _ROWS or name in names()


def build(name: str, options: PolicyOptions | None = None) -> SchedulingPolicy:
    """The policy of that name. Raises `PolicyError`: unknown (naming the nearest known one), or a plugin's fault."""
    options = options or PolicyOptions()
    if options.silent_order not in _SILENT:
        raise PolicyError(f"unknown order {options.silent_order!r} for silent jobs (known: {', '.join(_SILENT)})")
    if name in _ROWS:
        return _ROWS[name](options)
    for plugin in plugins.found():
        if plugin.name == name:
            return _from_plugin(plugin, options)
    near = get_close_matches(name, names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise PolicyError(f"unknown policy {name!r}{hint} (known: {', '.join(names())})")


def _usable_plugins() -> tuple[plugins.Plugin, ...]:
    """Plugins that load and do not carry the name of a policy of ours."""
    return tuple(plugin for plugin in plugins.found() if plugin.fault is None and plugin.name not in _ROWS)


def _from_plugin(plugin: plugins.Plugin, options: PolicyOptions) -> SchedulingPolicy:
    if plugin.make is None:
        raise PolicyError(f"policy {plugin.name!r} of package {plugin.package!r} does not load: {plugin.fault}")
    try:
        made = plugin.make(options)
    except Exception as error:
        raise PolicyError(f"policy {plugin.name!r} of package {plugin.package!r} cannot be built: {error!r}") from error
    missing = [part for part in ("name", "summary", "needs_durations", "plan") if not hasattr(made, part)]
    if missing:
        raise PolicyError(f"policy {plugin.name!r} of package {plugin.package!r} lacks {', '.join(missing)}")
    policy: SchedulingPolicy = made
    return policy
