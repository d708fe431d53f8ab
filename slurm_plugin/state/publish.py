"""Makes the state of a pass and writes it: whole or not at all, readable for those who may see everybody's jobs."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from explsched.atomic_file import replacing
from explsched.log import event
from sched_policy.model import Job, JobState
from slurm_plugin.client.capabilities import Capabilities
from slurm_plugin.client.changes import CancelJob, ChangeFailure, RequeueJob
from slurm_plugin.client.changes import Change as SlurmChange
from slurm_plugin.observation.standing import leased_job
from slurm_plugin.state import jobs
from slurm_plugin.state.metrics import exposition
from slurm_plugin.state.published import (
    FILE,
    PROGRESS,
    Change,
    Curve,
    LeaseRow,
    NodeRow,
    PlanLine,
    Sample,
    State,
    Totals,
    clock,
    encoded,
    read,
)
from slurm_plugin.state.view import View

METRICS_FILE = "sexplschedd.prom"
_LOG = logging.getLogger("explsched.state")
_HIDING = frozenset({"jobs", "nodes", "partitions", "reservations"})
_SAMPLE_EVERY_S = 300.0
_SAMPLES = 288  # a day of them
_MOST_POINTS = 40
_OPEN_MODE, _PRIVATE_MODE = 0o644, 0o640


def private(can: Capabilities, readers: Literal["group", "all"]) -> tuple[str, ...]:
    """What users who are no operators may not see: those words of PrivateData that concern the state, and progress."""
    words = can.settings.get("PrivateData", "jobs").replace(" ", "").lower()
    hidden = tuple(word for word in words.split(",") if word in _HIDING)
    return (*hidden, PROGRESS) if readers == "group" else hidden


def state_of(
    view: View,
    changes: Sequence[SlurmChange],
    hidden: tuple[str, ...],
    cluster: str = "",
    totals: Totals | None = None,
    samples: Iterable[Sample] = (),
    source: str = "daemon",
) -> State:
    """The state of a view and the changes it led to."""
    seen = view.seen
    return State(
        written_s=seen.snapshot.now_s,
        interval_s=view.config.interval_s,
        policy=view.config.policy,
        cluster=cluster,
        private=hidden,
        totals=totals or Totals(),
        jobs=tuple(jobs.rows(view)),
        nodes=tuple(_nodes(view)),
        leases=tuple(
            LeaseRow(one.name, leased_job(one.name), one.nodes, one.start_s, one.end_s) for one in seen.reservations
        ),
        samples=tuple(samples),
        explanations=encoded(list(jobs.explanations(view))),
        curves=encoded(list(_curves(view))),
        plan=encoded(list(_plan(view))),
        changes=encoded([Change(getattr(change, "job_id", None), str(change)) for change in changes]),
        source=source,
    )


def _nodes(view: View) -> Iterator[NodeRow]:
    held: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for job in view.seen.snapshot.running:
        for share in job.allocation:
            held[share.node].append((job.job_id, share.gpus))
    for node in view.seen.nodes.values():
        yield NodeRow(node.name, node.state, node.gpus, tuple(sorted(node.partitions)), tuple(held[node.name]))


def _curves(view: View) -> Iterator[Curve]:
    for job in view.seen.snapshot.jobs:
        if job.points:
            yield _curve(job, job.state.value)
    for job in view.seen.snapshot.ended:
        if job.points:
            yield _curve(job, "ENDED")


def _curve(job: Job, state: str) -> Curve:
    told, every = job.exploration, math.ceil(len(job.points) / _MOST_POINTS)
    kept = [*job.points[:-1:every], job.points[-1]]
    points = tuple((point.step, point.value) for point in kept)
    metric, sweep = (told.metric, told.sweep or "") if told else ("", "")
    return Curve(job.job_id, job.user, job.name, sweep, metric, state, points)


def _plan(view: View) -> Iterator[PlanLine]:
    """The plan as `sexplsched plan` prints it."""
    plan = view.plan
    for start in plan.starts:
        where = ", ".join(f"{share.node}:{share.gpus}" for share in start.placement)
        yield PlanLine("start", (start.job_id,), f"on {where}: {start.reason}")
    for promise in plan.reservations:
        where = ", ".join(f"{share.node}:{share.gpus}" for share in promise.placement)
        yield PlanLine("promise", (promise.job_id,), f"{clock(promise.start_s)} on {where}: {promise.reason}")
    for group in plan.groups:
        yield PlanLine("group", group.job_ids, group.reason)
    for preemption in plan.preemptions:
        yield PlanLine("preempt", (preemption.job_id,), preemption.reason)
    for resize in plan.resizes:
        yield PlanLine("resize", (resize.job_id,), f"{resize.request.total} GPUs: {resize.reason}")
    for stop in plan.stops:
        yield PlanLine("stop", (stop.job_id,), stop.reason)


def sample(view: View) -> Sample:
    """How much of the cluster is in use."""
    nodes, all_jobs = view.seen.snapshot.nodes, view.seen.snapshot.jobs
    holding = [job for job in all_jobs if job.holds_gpus]
    waiting = sum(job.state is JobState.PENDING for job in all_jobs)
    busy = sum(share.gpus for job in holding for share in job.allocation)
    return Sample(view.seen.snapshot.now_s, sum(node.gpus for node in nodes), busy, len(holding), waiting)


class Publisher:
    """Writes state and metrics to a directory. One that cannot be written to keeps the daemon from nothing."""

    def __init__(self, directory: Path) -> None:
        """Samples of an earlier daemon are taken over."""
        self.directory = directory
        before = read(directory)
        self._samples = deque(before.samples if before else (), maxlen=_SAMPLES)
        self._fault = ""

    def publish(
        self, view: View, changes: Sequence[SlurmChange], hidden: tuple[str, ...], cluster: str, totals: Totals
    ) -> None:
        """Replace what is there."""
        began_s = time.monotonic()
        new = sample(view)
        if not self._samples or new.time_s - self._samples[-1].time_s >= _SAMPLE_EVERY_S:
            self._samples.append(new)
        samples = self._samples if self._samples[-1] is new else (*self._samples, new)
        state = state_of(view, changes, hidden, cluster, totals, samples)
        mode = _PRIVATE_MODE if hidden else _OPEN_MODE
        try:
            if not self.directory.exists():
                self.directory.mkdir()
                self.directory.chmod(0o755)  # whatever the umask: what may be read is up to the files
            self._write(FILE, msgspec.json.encode(state), mode)
            took_s = time.monotonic() - began_s
            self._write(METRICS_FILE, exposition(state, took_s), _OPEN_MODE)
        except OSError as error:
            fault = f"{error.filename or self.directory}: {error.strerror}"
            if fault != self._fault:
                event(_LOG, logging.WARNING, "state not published, commands ask Slurm", why=fault)
            self._fault = fault
        else:
            self._fault = ""

    def _write(self, name: str, content: bytes, mode: int) -> None:
        with replacing(self.directory / name, mode=mode) as file:
            _ = file.write(content)


def counted(totals: Totals, changes: Sequence[SlurmChange], failures: Sequence[ChangeFailure], pass_s: float) -> Totals:
    """The totals after one more pass."""
    refused = {failure.change for failure in failures}
    done = [change for change in changes if change not in refused]
    return replace(
        totals,
        passes=totals.passes + 1,
        writes=totals.writes + len(changes),
        refusals=totals.refusals + len(failures),
        preemptions=totals.preemptions + sum(isinstance(change, RequeueJob) for change in done),
        stops=totals.stops + sum(isinstance(change, CancelJob) for change in done),
        pass_s=pass_s,
    )
