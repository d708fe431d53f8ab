"""A burst on a real gateway: HAProxy, control plane and replica jobs on a private Slurm cluster of its own.

One replica serves; then come as many requests as eight can answer, for a while, and then few again, with a slow trickle
of streams all the time. Prints how many requests failed and streams were cut (both should be 0), how long after the
burst's begin the decision for more replicas was made (`scale_decision_s`) and eight served (`full_s`, nan if never),
and how many replicas were drained afterwards. Needs root and the Slurm packages; run it from the repository's root.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from slurm_plugin import devcluster
from slurm_plugin.devcluster.machine import reserved, until
from testkit.gateway import Gateway, Load, in_foreground

REPLICAS = 8
CONCURRENCY = 4
TOKENS = 10
TOKEN_MS = 20
_PATIENCE_S = 180.0
# One replica: so many requests at a time, each as long as its tokens.
REQUESTS_PER_S = CONCURRENCY / (TOKENS * TOKEN_MS / 1000)


def measure(directory: Path, seconds: float = 45.0, share: float = 0.9) -> dict[str, float]:
    """A burst of `seconds` with a load of `share` of what eight replicas can answer. `directory` has a short path."""
    directory.mkdir()
    directory.chmod(0o755)
    directory.parent.chmod(0o755)
    cluster = devcluster.up(devcluster.ClusterSpec(nodes=2, gpus_per_node=0, shards_per_node=0), directory / "c")
    place = directory / "g"
    place.mkdir()
    scale = {"max": REPLICAS, "max_pending": REPLICAS}
    load: dict[str, Any] = {"concurrency": CONCURRENCY, "requests_per_s": REQUESTS_PER_S}
    try:
        with reserved(1) as (port,), in_foreground(cluster.env(), place, port, {}, scale, **load) as gateway:
            return _measure(gateway, seconds, share)
    finally:
        devcluster.down(directory / "c")


def _measure(gateway: Gateway, seconds: float, share: float) -> dict[str, float]:
    until(lambda: gateway.serving() == 1, "the first replica serves", _PATIENCE_S)
    full_s = None
    with Load(gateway.url, per_s=2, stream=True).running() as streams:
        time.sleep(10)
        began_s = time.time()
        with Load(gateway.url, per_s=share * REPLICAS * REQUESTS_PER_S, tokens=TOKENS).running() as burst:
            while time.time() < began_s + seconds:
                if full_s is None and gateway.serving() == REPLICAS:
                    full_s = time.time() - began_s
                time.sleep(0.1)
        until(lambda: gateway.serving() < REPLICAS, "replicas leave after the burst", _PATIENCE_S)
        until(lambda: bool(gateway.events("drained")), "a replica is drained", _PATIENCE_S)
    more = [event for event in gateway.events("wanted") if event["unix_s"] > began_s and event["replicas"] > 1]
    waits_s = sorted(burst.waits_s)
    return {
        "burst_requests": burst.answers.total() + streams.answers.total(),
        "failed_requests": len(burst.failures),
        "cut_streams": len(streams.failures),
        "scale_decision_s": round(more[0]["unix_s"] - began_s, 1) if more else math.nan,
        "full_s": math.nan if full_s is None else round(full_s, 1),
        "most_wanted": max((event["replicas"] for event in more), default=0),
        "drained": len(gateway.events("drained")),
        "cut_replicas": len(gateway.events("cut")),
        "request_p50_s": round(waits_s[len(waits_s) // 2], 3),
        "request_p99_s": round(waits_s[int(0.99 * len(waits_s))], 3),
    }
