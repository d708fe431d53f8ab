"""When replicas of a busy cluster start, beside what the gateway had said: the figure behind `Retry-After` and status.

A private cluster whose nodes are all taken, with a queue of other people's jobs that end before their time limits, as
jobs do. Replica jobs come now and then; every two seconds the gateway's estimate for each that waits is written down,
made from what is known at that moment alone: Slurm's estimate, and how earlier ones came true. Counted are estimates of
`_LEAST_S` and more, or of jobs that did start so much later; within 2x is `max / min <= 2`. Needs root and the Slurm
packages.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inference_gateway.control.start_times import Start, StartTimes
from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob

SPAN_S = 270.0
_NODES = 8
_BETWEEN_S = 12.0
_POLL_S = 2.0
_LEAST_S = 10.0
_HISTORY = 3
_OTHERS, _REPLICAS = "others:", "replicas:"


@dataclass(slots=True)
class Waiting:
    """A replica job: the estimates of its start, with the time of each, and when it started.

    `known` is how many had started when it was asked for.
    """

    asked_s: float
    estimates: list[tuple[float, float]] = field(default_factory=list)
    slurm: list[tuple[float, float]] = field(default_factory=list)
    began_s: float | None = None
    known: int = 0


def measure(directory: Path, span_s: float = SPAN_S, seed: int = 1) -> dict[str, float]:
    """Shares of the estimates within 2x of what came. `directory` has a short path."""
    directory.mkdir(mode=0o755)
    directory.parent.chmod(0o755)
    extra = (("SchedulerParameters", "bf_interval=5,bf_resolution=5,bf_max_job_test=200"),)
    spec = devcluster.ClusterSpec(nodes=_NODES, gpus_per_node=0, shards_per_node=0, extra=extra)
    cluster = devcluster.up(spec, directory / "c")
    try:
        found = _watch(CliClient(environment=cluster.env()), span_s, random.Random(seed))  # noqa: S311
    finally:
        devcluster.down(directory / "c")
    return figures(found)


def _watch(client: CliClient, span_s: float, draw: random.Random) -> Sequence[Waiting]:
    replicas: dict[int, Waiting] = {}
    began_s = time.time()
    for _ in range(2 * _NODES - 2):
        _submit(client, _OTHERS, draw)
    other_s, replica_s = draw.expovariate(1 / _BETWEEN_S), 5.0
    while (now_s := time.time() - began_s) < span_s:
        while other_s < now_s:
            _submit(client, _OTHERS, draw)
            other_s += draw.expovariate(1 / _BETWEEN_S)
        if replica_s < min(now_s, 0.7 * span_s):
            known = sum(one.began_s is not None for one in replicas.values())
            replicas[_submit(client, _REPLICAS, draw)] = Waiting(time.time(), known=known)
            replica_s += draw.uniform(8.0, 16.0)
        jobs = {job.job_id: job for job in client.tagged_jobs(_REPLICAS)}
        _note(replicas, jobs, time.time())
        time.sleep(_POLL_S)
    return list(replicas.values())


def _submit(client: CliClient, who: str, draw: random.Random) -> int:
    """A job of one node that ends somewhere before its limit of one or two minutes."""
    limit_min = draw.choice((1, 2))
    length_s = limit_min * 60 * draw.uniform(0.3, 0.9)
    options = (f"--comment={who}", "--exclusive", "--nodes=1", f"--time={limit_min}", "--output=/dev/null")
    return client.submit(f"#!/bin/sh\nsleep {length_s:.1f}\n", options)


def _note(replicas: dict[int, Waiting], jobs: dict[int, SlurmJob], now_s: float) -> None:
    """Write down who has started, and what is said of the others."""
    for job_id, one in replicas.items():
        job = jobs.get(job_id)
        if job is not None and one.began_s is None and job.state != "PENDING" and job.start_s is not None:
            one.began_s = job.start_s
    known = tuple(one.began_s - one.asked_s for one in replicas.values() if one.began_s is not None)
    came_true = tuple(
        (one.began_s - one.asked_s) / (first[0] - one.asked_s + first[1])
        for one in replicas.values()
        if one.began_s is not None and (first := next((pair for pair in one.slurm if pair[1] >= 5.0), None))
    )
    times = StartTimes(known, (0.0,), came_true)
    for job_id, one in replicas.items():
        job = jobs.get(job_id)
        if job is None or job.state != "PENDING":
            continue
        slurm_s = None if job.start_s is None else job.start_s - now_s
        if slurm_s is not None:
            one.slurm.append((now_s, slurm_s))
        said = times.next_in_s([Start(running=False, age_s=now_s - one.asked_s, expected_in_s=slurm_s)], 0.0)
        if said is not None and (slurm_s is not None or known):
            one.estimates.append((now_s, said))


def figures(found: Iterable[Waiting]) -> dict[str, float]:
    """Shares of estimates within 2x: of all, and of the first of each job; and of Slurm's own, as they are."""
    started = [one for one in found if one.began_s is not None]
    result = {"eta_jobs": float(len(started))}
    later = [one for one in started if one.known >= _HISTORY and one.estimates]
    result["eta_first_with_history"] = float(len(later))
    result["eta_first_with_history_within_2x"] = _within(
        (one.estimates[0][1], one.began_s - one.estimates[0][0]) for one in later if one.began_s is not None
    )
    for name, series in (("eta", [one.estimates for one in started]), ("slurm", [one.slurm for one in started])):
        pairs = [
            [(said, one.began_s - at_s) for at_s, said in mine if one.began_s is not None]
            for one, mine in zip(started, series, strict=True)
        ]
        every = [pair for mine in pairs for pair in mine]
        result[f"{name}_estimates"] = float(len([pair for pair in every if max(pair) >= _LEAST_S]))
        result[f"{name}_within_2x"] = _within(every)
        result[f"{name}_first_within_2x"] = _within([mine[0] for mine in pairs if mine])
    return result


def _within(pairs: Iterable[tuple[float, float]]) -> float:
    counted = [pair for pair in pairs if max(pair) >= _LEAST_S]
    good = sum(max(pair) <= 2 * min(pair) for pair in counted)
    return good / len(counted) if counted else float("nan")
