"""Makes the state of a pass and writes it atomically, readable for those who may see all users' jobs.

Writes the daemon's metrics, too.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from explsched.atomic_file import replacing
from explsched.log import event
from sched_policy.model import Direction, Exploration, Job, JobState, ProgressPoint
from slurm_plugin.client.batch import shown
from slurm_plugin.client.capabilities import Capabilities
from slurm_plugin.client.changes import CancelJob, ChangeFailure, RequeueJob
from slurm_plugin.client.changes import Change as SlurmChange
from slurm_plugin.client.notation import clock
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.observation.gpu_hours import held_gpus, whole_s
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.standing import leased_job, may_start
from slurm_plugin.observation.trainings import has_diverged
from slurm_plugin.state import jobs
from slurm_plugin.state.metrics import METRICS_FILE, counters, exposition, gauges
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
    encoded,
    read,
)
from slurm_plugin.state.view import View

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_LOG = logging.getLogger("explsched.state")
_HIDING = frozenset({"jobs", "nodes", "partitions", "reservations"})
PATIENCE_S = 10.0
_SAMPLE_EVERY_S = 300.0
_SAMPLES = 288  # a day of them
_MOST_POINTS = 40
_OPEN_MODE, _PRIVATE_MODE = 0o644, 0o640


def private(can: Capabilities, readers: Literal["group", "all"]) -> tuple[str, ...]:
    """What users who are not operators may not see: the words of PrivateData that concern the state, and `PROGRESS`."""
    hidden = tuple(word for word in can.private_data if word in _HIDING)
    return (*hidden, PROGRESS) if readers == "group" else hidden


def state_of(
    view: View,
    changes: Sequence[SlurmChange],
    hidden: tuple[str, ...],
    cluster: str = "",
    totals: Totals | None = None,
    samples: Iterable[Sample] = (),
    source: str = "daemon",
    ahead_s: float = 0.0,
) -> State:
    """The state to publish: a view, and the changes that followed from it.

    Its age is told by this host's clock, which is `ahead_s` ahead of slurmctld's, by which the view tells its times.
    """
    seen = view.seen
    return State(
        written_s=seen.snapshot.now_s + ahead_s,
        interval_s=view.config.interval_s,
        policy=view.config.policy,
        cluster=cluster,
        private=hidden,
        totals=totals or Totals(),
        jobs=tuple(jobs.rows(view)),
        nodes=tuple(_nodes(view)),
        leases=tuple(
            LeaseRow(one.name, leased_job(one.name), one.nodes, one.start_s, one.end_s)
            for one in view.seen.cluster.reservations
        ),
        samples=tuple(samples),
        explanations=encoded(list(jobs.explanations(view))),
        curves=encoded(list(_curves(view))),
        plan=encoded(list(_plan(view))),
        changes=encoded([Change(getattr(change, "job_id", None), shown(change)) for change in changes]),
        source=source,
    )


def _nodes(view: View) -> Iterator[NodeRow]:
    held: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for job in view.seen.snapshot.running:
        for share in job.allocation:
            held[share.node].append((job.job_id, share.gpus))
    for node in view.seen.nodes.values():
        jobs_here = tuple(held[node.name])
        devices = _devices(
            node.gpus, jobs_here, [view.sharers.holders.get((node.name, i), ()) for i in range(node.gpus)]
        )
        yield NodeRow(node.name, node.state, node.gpus, tuple(sorted(node.partitions)), jobs_here, devices)


def _devices(
    gpus: int, held: Sequence[tuple[int, int]], known: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """The holders of each GPU of a node: `known` ones from Slurm; jobs without known GPUs are put on the others."""
    located = {job_id for holders in known for job_id in holders}
    left = deque(at for at in range(gpus) if not known[at])
    devices = list(known)
    for job_id, count in held:
        for _ in range(0 if job_id in located else min(count, len(left))):
            devices[left.popleft()] = (job_id,)
    return tuple(devices)


def _curves(view: View) -> Iterator[Curve]:
    seen = view.seen
    for job in seen.snapshot.jobs:
        if _finite_points(job):
            told = seen.progress.get(job.job_id, JobProgress())
            yield _curve(job, told, job.state.value, job.executed_s(seen.snapshot.now_s), seen.gpu_hours(job))
    for job in seen.snapshot.ended:
        if _finite_points(job):
            told = seen.progress.get(job.job_id, JobProgress())
            state, gpu_hours = "COMPLETED" if told.is_done else "ENDED", held_gpus(job) * job.earlier_s / 3600
            yield _curve(job, told, state, job.earlier_s, gpu_hours, told.failure)


def _finite_points(job: Job) -> list[ProgressPoint]:
    return [point for point in job.points if math.isfinite(point.value)]


def _curve(job: Job, progress: JobProgress, state: str, run_s: float, gpu_hours: float, failure: str = "") -> Curve:
    told, finite = job.exploration or Exploration(metric=""), _finite_points(job)
    kept = [*finite[: -1 : math.ceil(len(finite) / _MOST_POINTS)], finite[-1]]
    points = tuple((point.step, point.value) for point in kept)
    best = (min if told.direction is Direction.MIN else max)(point.value for point in finite)
    reported_s = progress.run_s([report for report in progress.reports if report.metric == told.metric])
    return Curve(
        jobid=job.job_id,
        user=job.user,
        name=job.name,
        sweep=told.sweep or "",
        metric=told.metric,
        state=state,
        direction=told.direction.value,
        best=best,
        gpus=held_gpus(job),
        run_s=run_s,
        total_steps=job.total_steps,
        params=told.params,
        points=points,
        failure=failure,
        gpu_hours=gpu_hours,
        whole_s=whole_s(job.total_steps, (point.step for point in job.points), max(reported_s, default=0.0)),
        diverged=has_diverged(job.points, told.direction),
    )


def _plan(view: View) -> Iterator[PlanLine]:
    """The plan as `sexplsched plan` prints it."""
    plan = view.plan
    for start in plan.starts:
        where = ", ".join(f"{share.node}:{share.gpus}" for share in start.placement)
        yield PlanLine("start", (start.job_id,), f"on {where}: {start.reason}")
    for reservation in plan.reservations:
        where = ", ".join(f"{share.node}:{share.gpus}" for share in reservation.placement)
        yield PlanLine(
            "reserve", (reservation.job_id,), f"{clock(reservation.start_s)} on {where}: {reservation.reason}"
        )
    for group in plan.groups:
        yield PlanLine("group", group.job_ids, group.reason)
    for preemption in plan.preemptions:
        yield PlanLine("preempt", (preemption.job_id,), preemption.reason)
    for resize in plan.resizes:
        yield PlanLine("resize", (resize.job_id,), f"{resize.request.total} GPUs: {resize.reason}")
    for stop in plan.stops:
        yield PlanLine("stop", (stop.job_id,), stop.reason)


def sample(view: View) -> Sample:
    """GPUs and jobs of the cluster at the time of the view."""
    nodes, all_jobs = view.seen.snapshot.nodes, view.seen.snapshot.jobs
    now_s = view.seen.snapshot.now_s
    waiting = [job for job in all_jobs if job.state is JobState.PENDING]
    holding = [job for job in all_jobs if job.holds_gpus]
    startable = [job for job in waiting if may_start(view.seen.jobs[job.job_id], now_s)]
    busy = sum(bool(holders) for node in _nodes(view) for holders in node.devices)  # a shared GPU counts once
    return Sample(
        time_s=now_s,
        gpus=sum(node.gpus for node in nodes),
        busy_gpus=busy,
        running=len(holding),
        waiting=sum(job.array_tasks for job in waiting),
        gpus_waited_for=sum(job.request.total * job.array_tasks for job in startable),
        reporting=sum(bool(view.seen.progress.get(job.job_id, JobProgress()).reports) for job in holding),
    )


class Publisher:
    """Writes state and metrics to a directory. If that fails it is logged once, and the daemon continues.

    So it does while the file system hangs: a pass waits for it once.
    """

    def __init__(self, directory: Path, patience_s: float = PATIENCE_S) -> None:
        """Start with the samples of an earlier daemon."""
        self.directory = directory
        self._calls = BoundedCall(patience_s)
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._earlier: tuple[Sample, ...] | None = None
        self._gauges: tuple[Metric, ...] = ()
        self._fault = ""
        self._try(self._look)

    def _look(self) -> None:
        before = read(self.directory)
        self._earlier = tuple(before.samples) if before else ()

    def publish(
        self,
        view: View,
        changes: Sequence[SlurmChange],
        hidden: tuple[str, ...],
        cluster: str,
        totals: Totals,
        ahead_s: float = 0.0,
    ) -> None:
        """Replace the published state and metrics; `ahead_s` as for `state_of`."""
        began_s = time.monotonic()
        new = sample(view)
        if self._earlier is None:  # the file system has not answered yet
            self._try(self._look)
        is_known = self._earlier is not None
        if self._earlier:
            self._samples = deque((*self._earlier, *self._samples), maxlen=_SAMPLES)
            self._earlier = ()
        self._forget(new.time_s)
        if not self._samples or new.time_s - self._samples[-1].time_s >= _SAMPLE_EVERY_S:
            self._samples.append(new)
        samples = self._samples if self._samples[-1] is new else (*self._samples, new)
        state = state_of(view, changes, hidden, cluster, totals, samples, ahead_s=ahead_s)
        mode = _PRIVATE_MODE if hidden else _OPEN_MODE

        def write() -> None:
            if not self.directory.exists():
                self.directory.mkdir()
                self.directory.chmod(0o755)  # despite the umask; the modes of the files decide who may read them
            self._write(FILE, msgspec.json.encode(state), mode)
            self._gauges = tuple(gauges(state, time.monotonic() - began_s))
            self._write_metrics(totals)

        if is_known:  # else it would overwrite the samples of the earlier daemon
            self._try(write)

    def count(self, totals: Totals) -> None:
        """Publish the totals after a pass that failed; the gauges are those of the last one that did not."""
        if self._gauges:
            self._try(partial(self._write_metrics, totals))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            is_done = self._calls.run(call)
            fault = "" if is_done else f"{self.directory}: has not answered for {self._calls.patience_s:g} s"
        except OSError as error:
            fault = f"{error.filename or self.directory}: {error.strerror}"
        if fault not in ("", self._fault):
            event(_LOG, logging.WARNING, "state not published, commands ask Slurm", why=fault)
        self._fault = fault

    def _forget(self, now_s: float) -> None:
        """Leave out samples of other days, also those of a clock that was ahead: no other would come until then."""
        while self._samples and self._samples[0].time_s < now_s - _SAMPLES * _SAMPLE_EVERY_S:
            self._samples.popleft()
        while self._samples and self._samples[-1].time_s > now_s:
            self._samples.pop()

    def _write_metrics(self, totals: Totals) -> None:
        self._write(METRICS_FILE, exposition((*counters(totals), *self._gauges)), _OPEN_MODE)

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
