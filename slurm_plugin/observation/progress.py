"""Reads the progress files that jobs append to: `<spool>/<job id>.jsonl`, one JSON object a line.

The files are written by users' jobs, so nothing in them is trusted beyond its form: a file counts only if it is a
regular file owned by the job's user, lines are bounded, malformed ones are counted and skipped. Files are read
incrementally; what a job writes beyond the limits is counted, never kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from explsched.parameters import LONGEST
from sched_policy.model import Parameter, ProgressPoint

MAX_LINE_BYTES = 4096
MAX_BYTES_PER_READ = 1 << 20
MAX_REPORTS = 512
MAX_PARAMETERS = 64
_FUTURE_S = 60.0  # clocks of nodes differ a little; a report from further ahead is malformed


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """One report of one metric in the job's `restart`-th run."""

    time_s: float
    restart: int
    step: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, between two requeues, as far as its reports tell. `end_s` is its latest line."""

    restart: int
    start_s: float
    end_s: float


_NONE: Mapping[str, Parameter] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ToldParameters:
    """The hyper-parameters that a job has told, run by run. What the last run tells counts.

    `former` are those of the runs before `run`, `latest` its own. `differed` names those that a run has told
    differently from a run before it.
    """

    run: int = 0
    former: Mapping[str, Parameter] = field(default_factory=lambda: _NONE)
    latest: Mapping[str, Parameter] = field(default_factory=lambda: _NONE)
    differed: frozenset[str] = frozenset()

    @property
    def values(self) -> Mapping[str, Parameter]:
        """What counts."""
        return {**self.former, **self.latest}

    @property
    def changed(self) -> frozenset[str]:
        """Names of parameters that differed between runs."""
        return self.differed | {k for k, value in self.latest.items() if self.former.get(k, value) != value}

    def plus(self, run: int, told: Mapping[str, Parameter]) -> ToldParameters | None:
        """With what a line of a run tells; None for too many names, or a run that is over."""
        before = self
        if run > self.run:
            before = ToldParameters(run, self.values, _NONE, self.changed)
        after = replace(before, latest={**before.latest, **told})
        return after if run >= self.run and len(after.values) <= MAX_PARAMETERS else None


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Everything a job has reported so far.

    `refused` says why its file is not read at all; `malformed` counts the lines that were skipped. `told` are its
    hyper-parameters.
    """

    reports: tuple[ProgressReport, ...] = ()
    runs: tuple[Run, ...] = ()
    total_steps: int | None = None
    checkpoint_s: float | None = None
    ended: bool = False
    malformed: int = 0
    refused: str | None = None
    told: ToldParameters = field(default_factory=ToldParameters)
    _points: dict[tuple[str, int, tuple[tuple[int, int], ...]], tuple[ProgressPoint, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def points(self, metric: str, gpus: int, earlier: tuple[tuple[int, int], ...] = ()) -> tuple[ProgressPoint, ...]:
        """The curve of a metric over the GPU-seconds of a job of `gpus` GPUs.

        `earlier` are (run, GPUs) of runs for which it is known; an elastic job may have had other sizes. The same
        tuple, not merely an equal one, until something new is read: policies fit it only once.
        """
        key = metric, gpus, earlier
        if key not in self._points:
            held = dict(earlier)
            self._points[key] = tuple(
                ProgressPoint(r.step, self._gpu_s(r.time_s, r.restart, gpus, held), r.value)
                for r in self.reports
                if r.metric == metric
            )
        return self._points[key]

    def _gpu_s(self, time_s: float, restart: int, gpus: int, held: Mapping[int, int]) -> float:
        """GPU-seconds the job had behind it at a moment of its `restart`-th run."""
        run_s = {run.restart: run.end_s - run.start_s for run in self.runs if run.restart < restart}
        current = next((run for run in self.runs if run.restart == restart), None)
        run_s[restart] = max(0.0, time_s - current.start_s) if current else 0.0
        return sum(held.get(run, gpus) * length_s for run, length_s in run_s.items())

    def run_s(self, time_s: float, restart: int) -> float:
        """Seconds of run time the job had behind it at a moment of its `restart`-th run."""
        before = sum(run.end_s - run.start_s for run in self.runs if run.restart < restart)
        current = next((run for run in self.runs if run.restart == restart), None)
        return before + (max(0.0, time_s - current.start_s) if current else 0.0)


_Name = Annotated[str, Meta(min_length=1, max_length=LONGEST)]
_Value = Annotated[str, Meta(max_length=LONGEST)]


class _Line(msgspec.Struct, frozen=True):
    """One line of a progress file: a report (step, metric, value), an event, or hyper-parameters.

    Unknown keys are ignored.
    """

    time_s: Annotated[float, Meta(ge=0)]
    restart: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    event: Literal["start", "checkpoint", "end"] | None = None
    step: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    metric: Annotated[str, Meta(max_length=256)] = "loss"
    value: float | None = None
    total_steps: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    params: dict[_Name, bool | float | _Value] | None = None

    def is_whole(self, latest_s: float) -> bool:
        """Whether it says something, and was not written after `latest_s`. Numbers of JSON are finite."""
        says = self.event is not None or self.params is not None or (self.step is not None and self.value is not None)
        return says and self.time_s <= latest_s


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class _File:
    """What has been read of one file."""

    inode: int
    offset: int = 0
    progress: JobProgress = field(default_factory=JobProgress)


class ProgressSpool:
    """The spool directory. Keeps what it has read, so that each pass reads only what is new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, _File] = {}

    def read(self, owners: Mapping[int, int], now_s: float) -> dict[int, JobProgress]:
        """The progress of the jobs in `owners` (job id -> uid) that have a file. Others are forgotten."""
        try:
            present = {int(e.name[:-6]) for e in os.scandir(self._directory) if _is_progress_name(e.name)}
        except FileNotFoundError:
            present = set()
        self._files = {job_id: kept for job_id, kept in self._files.items() if job_id in owners}
        return {job_id: self._read_one(job_id, owners[job_id], now_s) for job_id in sorted(present & owners.keys())}

    def _read_one(self, job_id: int, uid: int, now_s: float) -> JobProgress:
        path = self._directory / f"{job_id}.jsonl"
        try:
            # O_NONBLOCK: opening a fifo that somebody put there must not hang the daemon.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return JobProgress(refused=f"{path}: {error.strerror}")
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return JobProgress(refused=f"{path}: is not a regular file")
            if status.st_uid != uid:
                return JobProgress(refused=f"{path}: is owned by uid {status.st_uid}, the job by uid {uid}")
            kept = self._files.get(job_id)
            if kept is None or kept.inode != status.st_ino or status.st_size < kept.offset:
                kept = self._files[job_id] = _File(status.st_ino)
            self._advance(kept, os.pread(descriptor, MAX_BYTES_PER_READ, kept.offset), now_s)
            return kept.progress
        finally:
            os.close(descriptor)

    def _advance(self, kept: _File, data: bytes, now_s: float) -> None:
        complete, newline, _rest = data.rpartition(b"\n")
        if newline:
            kept.offset += len(complete) + 1
            kept.progress = fold(kept.progress, complete.split(b"\n"), now_s)
        elif len(data) > MAX_LINE_BYTES:  # a line without end: pass over it, or it would be read for ever
            kept.offset += len(data)
            kept.progress = fold(kept.progress, [data], now_s)


def fold(progress: JobProgress, lines: list[bytes], now_s: float) -> JobProgress:
    """Add complete lines to what is known. Pure."""
    reports, runs = list(progress.reports), {run.restart: run for run in progress.runs}
    total_steps, checkpoint_s, ended = progress.total_steps, progress.checkpoint_s, progress.ended
    malformed, told = progress.malformed, progress.told
    last_step = {(r.restart, r.metric): r.step for r in reports}
    for text in lines:
        line = _parse(text, now_s)
        if line is None:
            malformed += 1
            continue
        run = runs.get(line.restart, Run(line.restart, line.time_s, line.time_s))
        runs[line.restart] = replace(run, end_s=max(run.end_s, line.time_s))
        if line.params is not None:
            more = told.plus(line.restart, line.params)
            malformed += more is None
            told = more or told
        elif line.event is not None:
            ended = line.event == "end"
            checkpoint_s = line.time_s if line.event == "checkpoint" else checkpoint_s
        elif line.step is None or line.value is None or line.step < last_step.get((line.restart, line.metric), 0):
            malformed += 1  # within one run steps only grow; after a requeue they start from the checkpoint
        else:
            last_step[line.restart, line.metric] = line.step
            reports.append(ProgressReport(line.time_s, line.restart, line.step, line.metric, line.value))
            total_steps = line.total_steps or total_steps
    while len(reports) > MAX_REPORTS:  # keep the first, every second of the rest, and the newest
        reports = reports[:1] + reports[2:-1:2] + reports[-1:]
    runs_in_order = tuple(runs[restart] for restart in sorted(runs))
    return JobProgress(tuple(reports), runs_in_order, total_steps, checkpoint_s, ended, malformed, told=told)


def _is_progress_name(name: str) -> bool:
    return name.endswith(".jsonl") and name[:-6].isascii() and name[:-6].isdigit()


def _parse(line: bytes, now_s: float) -> _Line | None:
    """The line if it has the form of a report or an event, else None."""
    if not line or len(line) > MAX_LINE_BYTES:
        return None
    try:
        read = _DECODER.decode(line)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return read if read.is_whole(now_s + _FUTURE_S) else None
