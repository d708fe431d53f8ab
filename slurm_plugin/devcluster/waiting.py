"""Waiting for something that a cluster does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_plugin.devcluster.spec import DevClusterError

PATIENCE_S = 60.0
_POLL_S = 0.2


def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Return when `condition` holds. Raises `DevClusterError` that names `what`, in words, after `patience_s`."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise DevClusterError(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(_POLL_S)
