"""Every named strategy, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from explsched.errors import PolicyError
from sched_policy.sweep.adaptive import AdaptiveHalving
from sched_policy.sweep.decision import Strategy
from sched_policy.sweep.published import Asha, Hyperband, MedianStop

_ROWS: Mapping[str, Callable[[], Strategy]] = {
    "adaptive": AdaptiveHalving,
    "asha": Asha,
    "hyperband": Hyperband,
    "median-stop": MedianStop,
}


def names() -> tuple[str, ...]:
    """Names of all strategies, the default first."""
    return tuple(_ROWS)


def build(name: str) -> Strategy:
    """The strategy of that name. Raises `PolicyError` for an unknown one."""
    if name not in _ROWS:
        raise PolicyError(f"unknown sweep strategy {name!r} (known: {', '.join(_ROWS)})")
    return _ROWS[name]()
