"""Every named policy, one row each. The rows themselves are in `rows`, by family."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from sched_policy import plugins
from sched_policy.errors import PolicyError
from sched_policy.options import OBJECTIVES, SILENT_ORDERS, SWEEP_STRATEGIES, PolicyOptions

if TYPE_CHECKING:  # a configuration is checked against the names without loading what policies compute with
    from sched_policy.policy import Policy, SchedulingPolicy

__all__ = ["PolicyOptions", "build", "knows", "names"]

# Policy -> module of `rows` with a function of its name. One policy should not pay for the libraries of the others.
_ROWS: Mapping[str, str] = {
    "slurm": "arrival",
    "fifo": "arrival",
    "srtf": "preemptive",
    "srsf": "preemptive",
    "tiresias": "preemptive",
    "themis": "preemptive",
    "muri-s": "sharing",
    "muri-l": "sharing",
    "antman": "sharing",
    "sjf-ffs": "sharing",
    "sjf-bsbf": "sharing",
    "simple": "arrival",
    "balanced": "arrival",
    "explsched": "exploratory",
    "fair": "exploratory",
    "slaq": "exploratory",
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
    if options.silent_order not in SILENT_ORDERS:
        raise PolicyError(f"unknown order {options.silent_order!r} for silent jobs (known: {', '.join(SILENT_ORDERS)})")
    if options.objective not in OBJECTIVES:
        raise PolicyError(f"unknown objective {options.objective!r} (known: {', '.join(OBJECTIVES)})")
    if options.sweep_strategy not in SWEEP_STRATEGIES:
        known = ", ".join(SWEEP_STRATEGIES)
        raise PolicyError(f"unknown sweep strategy {options.sweep_strategy!r} (known: {known})")
    if name in _ROWS:
        family = import_module(f"sched_policy.rows.{_ROWS[name]}")
        policy: Policy = getattr(family, name.replace("-", "_"))(options)
        return policy
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
