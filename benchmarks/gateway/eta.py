"""When replicas of a busy cluster start, beside what the gateway had said: the figure behind `Retry-After` and status.

A private cluster whose nodes are all taken, with a queue of other people's jobs that end before their time limits, as
jobs do. Replica jobs come now and then. Slurm is asked every five seconds, as the gateway does, and every two seconds
the gateway's estimate for each that waits is written down, made from what is known at that moment alone. Counted are
estimates of `_LEAST_S` and more, or of jobs that did start so much later; within 2x is `max / min <= 2`. Needs root and
the Slurm packages.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inference_gateway.control.start_times import EstimateLog, Foretold, ReplicaStart, StartTimes, WaitingLine
from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob

SPAN_S = 270.0
_NODES = 8
_BETWEEN_S = 12.0
_POLL_S = 2.0
_LIST_S = 5.0
"""As the gateway's default."""
_LEAST_S = 10.0
_HISTORY = 3
_OTHERS, _REPLICAS = "others:", "replicas:"


@dataclass(slots=True)
class Waiting:
    """A replica job: the estimates of its start, and Slurm's own, with the time of each, and when it started."""

    asked_s: float
    estimates: list[tuple[float, float]] = field(default_factory=list)
    slurm: list[tuple[float, float]] = field(default_factory=list)
    began_s: float | None = None


@dataclass(slots=True)
class History:
    """What a gateway remembers of the replicas that have started, as its control plane does."""

    log: EstimateLog = field(default_factory=EstimateLog)
    waits_s: tuple[float, ...] = ()
    foretold: tuple[Foretold, ...] = ()
    line: WaitingLine = field(default_factory=WaitingLine)
    rich_s: float = math.inf
    """When `_HISTORY` replicas had started."""

    def started(self, name: str, one: Waiting, began_s: float, now_s: float) -> None:
        """A job has started."""
        one.began_s = began_s
        self.waits_s = (*self.waits_s, began_s - one.asked_s)
        self.foretold = (*self.foretold, *self.log.started(name, began_s))
        if len(self.waits_s) == _HISTORY:
            self.rich_s = now_s


def measure(directory: Path, span_s: float = SPAN_S, seed: int = 1) -> dict[str, float]:
    """Shares of the estimates within 2x of what came. `directory` has a short path."""
    directory.mkdir(mode=0o755)
    directory.parent.chmod(0o755)
    extra = (("SchedulerParameters", "bf_interval=5,bf_resolution=5,bf_max_job_test=200"),)
    spec = devcluster.ClusterSpec(nodes=_NODES, gpus_per_node=0, shards_per_node=0, extra=extra)
    cluster = devcluster.up(spec, directory / "c")
    try:
        found, rich_s = _watch(CliClient(environment=cluster.env()), span_s, random.Random(seed))  # noqa: S311
    finally:
        devcluster.down(directory / "c")
    return figures(found, rich_s)


def _watch(client: CliClient, span_s: float, draw: random.Random) -> tuple[Sequence[Waiting], float]:
    """The replica jobs, and when so many had started that the estimates had a history."""
    replicas: dict[int, Waiting] = {}
    history = History()
    began_s = time.time()
    for _ in range(2 * _NODES - 2):
        _submit(client, _OTHERS, draw)
    jobs: dict[int, SlurmJob] = {}
    listed_s = -math.inf
    other_s, replica_s = draw.expovariate(1 / _BETWEEN_S), 5.0
    while (now_s := time.time() - began_s) < span_s:
        while other_s < now_s:
            _submit(client, _OTHERS, draw)
            other_s += draw.expovariate(1 / _BETWEEN_S)
        if replica_s < min(now_s, 0.7 * span_s):
            replicas[_submit(client, _REPLICAS, draw)] = Waiting(time.time())
            replica_s += draw.uniform(8.0, 16.0)
        if now_s >= listed_s + _LIST_S:
            listed_s, at_s = now_s, time.time()
            jobs = {job.job_id: job for job in client.tagged_jobs(_REPLICAS)}
            history.line.take(at_s, client.queue(), replicas)
        _note(replicas, jobs, history, time.time())
        time.sleep(_POLL_S)
    return list(replicas.values()), history.rich_s


def _submit(client: CliClient, who: str, draw: random.Random) -> int:
    """A job of one node that ends somewhere before its limit of one or two minutes."""
    limit_min = draw.choice((1, 2))
    length_s = limit_min * 60 * draw.uniform(0.3, 0.9)
    options = (f"--comment={who}", "--exclusive", "--nodes=1", f"--time={limit_min}", "--output=/dev/null")
    return client.submit(f"#!/bin/sh\nsleep {length_s:.1f}\n", options)


def _note(replicas: dict[int, Waiting], jobs: dict[int, SlurmJob], history: History, now_s: float) -> None:
    """Write down who has started, and what is said of the others."""
    for job_id, one in replicas.items():
        job = jobs.get(job_id)
        if job is not None and one.began_s is None and job.state != "PENDING" and job.start_s is not None:
            history.started(str(job_id), one, job.start_s, now_s)
    times = StartTimes(history.waits_s, (0.0,), history.foretold)
    for job_id, one in replicas.items():
        job = jobs.get(job_id)
        if job is None or job.state != "PENDING":
            continue
        slurm_s = None if job.start_s is None else job.start_s - now_s
        turn_s = history.line.turn_s(job_id, now_s)
        if slurm_s is not None:
            one.slurm.append((now_s, slurm_s))
        start = ReplicaStart(running=False, age_s=now_s - one.asked_s, expected_in_s=slurm_s, turn_in_s=turn_s)
        history.log.note(str(job_id), now_s, start, history.foretold)
        said = times.next_in_s([start], 0.0)
        if said is not None and (slurm_s is not None or turn_s is not None or history.waits_s):
            one.estimates.append((now_s, said))


def figures(found: Iterable[Waiting], rich_s: float) -> dict[str, float]:
    """Shares of estimates within 2x, and of Slurm's own as they are: of all, from `rich_s` on, and each job's first."""
    started = [one for one in found if one.began_s is not None]
    result = {"eta_jobs": float(len(started))}
    for name, series in (("eta", [one.estimates for one in started]), ("slurm", [one.slurm for one in started])):
        pairs = [
            [(at_s, said, max(0.0, one.began_s - at_s)) for at_s, said in mine if one.began_s is not None]
            for one, mine in zip(started, series, strict=True)
        ]
        every = [pair for mine in pairs for pair in mine]
        first = [mine[0] for mine in pairs if mine]
        for part, chosen in (("", every), ("_first", first)):
            result |= _within(f"{name}{part}", chosen)
            result |= _within(f"{name}{part}_with_history", [one for one in chosen if one[0] >= rich_s])
    return result


def _within(name: str, found: Iterable[tuple[float, float, float]]) -> dict[str, float]:
    """How many count of these (when, what was said, what came), and the share of them that is within 2x."""
    counted = [sorted(times_s) for _, *times_s in found if max(times_s) >= _LEAST_S]
    good = sum(longer <= 2 * shorter for shorter, longer in counted)
    return {
        f"{name}_estimates": float(len(counted)),
        f"{name}_within_2x": good / len(counted) if counted else math.nan,
    }
