"""Reads the progress files that jobs append to, one JSON object per line; `explsched.spool` says where they are.

The files are written by users' jobs, so they are checked: a file is read only if it is a regular file owned by the
job's user, the length of lines is limited, and malformed lines are counted and skipped. Files are read incrementally;
what exceeds the limits is counted, not kept.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import os
import stat
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from explsched.log import event
from explsched.parameters import LONGEST
from explsched.spool import MOST_BYTES, directories, open_directory
from sched_policy.model import Parameter, ProgressPoint, StageProfile
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.job_options import stage_profile

MAX_LINE_BYTES = 4096
MAX_BYTES_PER_READ = 1 << 17
"""Per file and pass; this much malformed text takes some hundredths of a second."""

MAX_BYTES_PER_USER = 1 << 21
"""For all files of a user together, per pass. The rest is read in later passes."""

MOST_MALFORMED = 100_000
MOST_FILES = 100_000
MOST_DIRECTORIES = 8
"""Of each user, the first by name: jobs report to the first, and perhaps to a later one if somebody took their name."""

MAX_REPORTS = 512
MAX_METRICS = 64
MAX_RUNS = 1024
"""More than any job is requeued."""
MAX_PARAMETERS = 64
_SKEW_S = 60.0
"""How far ahead a node's clock may be. If it is further ahead, times are corrected by the file's modification time."""

_MISSING = "there is no such directory"
_OF_ONE_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO})
"""What a user can bring about for a file or directory. Any other error is the file system's, and may pass."""

NO_SKEW: Mapping[int, float] = MappingProxyType({})
_LOG = logging.getLogger("explsched.progress")


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
class ReportedParameters:
    """The hyper-parameters that a job has reported, by run. Those of the last run count.

    `former` are those of the runs before `run`, `latest` its own. `differed` names those whose values differed
    between runs.
    """

    run: int = 0
    former: Mapping[str, Parameter] = field(default_factory=lambda: _NONE)
    latest: Mapping[str, Parameter] = field(default_factory=lambda: _NONE)
    differed: frozenset[str] = frozenset()

    @property
    def values(self) -> Mapping[str, Parameter]:
        """The parameters that count: the last reported value of each name."""
        return {**self.former, **self.latest}

    @property
    def changed(self) -> frozenset[str]:
        """Names of parameters that differed between runs."""
        return self.differed | {k for k, value in self.latest.items() if self.former.get(k, value) != value}

    def plus(self, run: int, reported: Mapping[str, Parameter]) -> ReportedParameters | None:
        """With parameters that a run has reported; None if there are too many names, or a later run has reported."""
        before = self
        if run > self.run:
            before = ReportedParameters(run, self.values, _NONE, self.changed)
        after = replace(before, latest={**before.latest, **reported})
        return after if run >= self.run and len(after.values) <= MAX_PARAMETERS else None


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Everything a job has reported so far.

    `refused` says why its file is not read at all; `malformed` counts the lines that were skipped. `parameters` are
    its hyper-parameters. `stages` has the stage times of the fastest report, since a job that shares its GPU is slower.
    `exit_status` is that of its last run, None if it reported none.
    """

    reports: tuple[ProgressReport, ...] = ()
    runs: tuple[Run, ...] = ()
    total_steps: int | None = None
    checkpoint_s: float | None = None
    ended: bool = False
    exit_status: int | None = None
    malformed: int = 0
    refused: str | None = None
    parameters: ReportedParameters = field(default_factory=ReportedParameters)
    stages: StageProfile | None = None
    _points: dict[tuple[str, int, tuple[tuple[int, int], ...]], tuple[ProgressPoint, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def is_done(self) -> bool:
        """Whether its command has reported success, or has reported its last step and no status.

        The last step is `total_steps`, or one less where steps are counted from 0.
        """
        if self.exit_status is not None:
            return self.exit_status == 0
        return bool(self.total_steps and self.reports) and self.reports[-1].step >= (self.total_steps or 0) - 1

    @property
    def failure(self) -> str:
        """A sentence about the failure of its last run; "" if it reported none."""
        return f"its command ended with status {self.exit_status}" if self.exit_status else ""

    def instead_of(self, metric: str) -> tuple[str, ...]:
        """The metrics that it has reported if `metric` is not among them (often --metric was forgotten), else none."""
        names = sorted({report.metric for report in self.reports})
        return () if metric in names else tuple(names)

    def points(self, metric: str, gpus: int, earlier: tuple[tuple[int, int], ...] = ()) -> tuple[ProgressPoint, ...]:
        """The curve of a metric over the GPU-seconds of a job of `gpus` GPUs.

        `earlier` has (run, GPUs) of runs whose size is known; an elastic job may have had other sizes. Returns the same
        object until something new is read, so that policies fit a curve only once.
        """
        key = metric, gpus, earlier
        if key not in self._points:
            held = dict(earlier)
            own = [r for r in self.reports if r.metric == metric]
            behind = self._behind(own, lambda run: held.get(run, gpus))
            self._points[key] = tuple(
                ProgressPoint(r.step, gpu_s, r.value) for r, gpu_s in zip(own, behind, strict=True)
            )
        return self._points[key]

    def run_s(self, reports: Sequence[ProgressReport]) -> list[float]:
        """The job's run time at each of some of its reports, over all its runs, in seconds."""
        return self._behind(reports, lambda _run: 1)

    def _behind(self, reports: Iterable[ProgressReport], weight: Callable[[int], int]) -> list[float]:
        """Run time at each of the reports over all runs; a second of a run counts `weight(run)`."""
        began = {run.restart: (run.start_s, weight(run.restart)) for run in self.runs}
        order = sorted(self.runs, key=lambda run: run.restart)
        numbers = [run.restart for run in order]
        lengths_s = (began[run.restart][1] * (run.end_s - run.start_s) for run in order)
        before_s = list(itertools.accumulate(lengths_s, initial=0.0))
        found = []
        for report in reports:
            start_s, counts = began.get(report.restart, (report.time_s, 0))
            current_s = counts * max(0.0, report.time_s - start_s)
            found.append(before_s[bisect_left(numbers, report.restart)] + current_s)
        return found


_Name = Annotated[str, Meta(min_length=1, max_length=LONGEST)]
_Value = Annotated[str, Meta(max_length=LONGEST)]


class _Line(msgspec.Struct, frozen=True):
    """One line of a progress file: a report (step, metric, value), an event, hyper-parameters, or measured stages.

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
    stages: Annotated[str, Meta(max_length=128)] | None = None
    status: Annotated[int, Meta(ge=0, le=255)] | None = None

    def is_complete(self) -> bool:
        """Whether it has all fields of one of these."""
        says = self.event is not None or self.params is not None or self.stages is not None
        return says or (self.step is not None and self.value is not None)


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class _File:
    """What has been read of one file. `skew_s`: by run, how far its node's clock is ahead, if more than `_SKEW_S`."""

    inode: int
    offset: int = 0
    progress: JobProgress = field(default_factory=JobProgress)
    skew_s: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Look:
    """One look at all files. `left`: bytes that may still be read, by user; `fault`: why it is not complete, or "".

    `is_cut` says that one of the limits has kept it from the end of a file.
    """

    left: dict[int, int]
    is_cut: bool = False
    fault: str = ""

    def note(self, error: OSError, path: Path | str) -> None:
        """Take in an error in opening or reading one file or directory."""
        if error.errno not in _OF_ONE_FILE:
            self.fault = f"{path}: {error.strerror}"


class ProgressSpool:
    """The spool directory. Keeps what it has read, so that each pass reads only what is new.

    If the file system hangs or fails, passes continue with what was read before; `fault` says why the latest reading is
    not complete.
    """

    def __init__(self, directory: Path, patience_s: float = 10.0) -> None:
        self._spool = directory
        self._reading = BoundedCall(patience_s)
        self._files: dict[int, _File] = {}
        self._known: dict[int, JobProgress] = {}
        self.fault = ""

    def read(self, owners: Mapping[int, int], now_s: float) -> dict[int, JobProgress]:
        """The progress of the jobs in `owners` (job id -> uid) that have a file. Others are forgotten."""
        before, self.fault = self.fault, self._read(owners, now_s)
        if self.fault not in ("", _MISSING, before):
            event(_LOG, logging.WARNING, "progress not read, the last holds", spool=str(self._spool), why=self.fault)
        known = self._known
        return {job_id: known[job_id] for job_id in sorted(known.keys() & owners.keys())}

    def _read(self, owners: Mapping[int, int], now_s: float) -> str:
        """Read what is new; returns why not all could be read."""
        return self._bounded_look(owners, now_s).fault

    def _bounded_look(self, owners: Mapping[int, int], now_s: float) -> _Look:
        look = _Look(dict.fromkeys(owners.values(), MAX_BYTES_PER_USER))
        try:
            if not self._reading.run(partial(self._look, dict(owners), now_s, look)):
                look.fault = f"the file system has not answered for {self._reading.patience_s:g} s"
        except OSError as error:
            look.fault = error.strerror or str(error)
        return look

    def _look(self, owners: Mapping[int, int], now_s: float, look: _Look) -> None:
        """Read all files anew, in a thread of its own."""
        try:
            spool = os.open(self._spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._known, look.fault = {}, _MISSING
            return
        try:
            known: dict[int, JobProgress] = {}
            self._files = {job_id: kept for job_id, kept in self._files.items() if job_id in owners}
            for directory in _directories(spool, frozenset(owners.values()), look):
                try:
                    for job_id in directory.jobs(owners):
                        if job_id not in known or known[job_id].refused is not None:
                            known[job_id] = self._read_one(directory, job_id, owners[job_id], now_s, look)
                finally:
                    directory.close()
            self._known = known
        finally:
            os.close(spool)

    def _read_one(self, directory: _Directory, job_id: int, uid: int, now_s: float, look: _Look) -> JobProgress:
        path = self._spool / directory.name / f"{job_id}.jsonl"
        earlier = self._files.get(job_id)
        try:
            # O_NONBLOCK: opening a fifo that a user put there must not hang the daemon.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path.name, flags, dir_fd=directory.descriptor)
        except OSError as error:
            return _unreadable(error, path, earlier, look)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return JobProgress(refused=f"{path}: is not a regular file")
            if status.st_uid != uid:
                return JobProgress(refused=f"{path}: is owned by uid {status.st_uid}, the job by uid {uid}")
            kept = earlier
            if kept is None or kept.inode != status.st_ino or status.st_size < kept.offset:
                kept = self._files[job_id] = _File(status.st_ino)
            if kept.offset > MOST_BYTES or kept.progress.malformed > MOST_MALFORMED:
                return replace(kept.progress, refused=f"{path}: is too long, or has too many malformed lines")
            length = min(MAX_BYTES_PER_READ, look.left[uid])
            look.is_cut |= status.st_size > kept.offset + length
            if length > 0 and status.st_size > kept.offset:
                data = os.pread(descriptor, length, kept.offset)
                look.left[uid] -= len(data)
                tail = os.pread(descriptor, 2 * MAX_LINE_BYTES, max(kept.offset, status.st_size - 2 * MAX_LINE_BYTES))
                _note_skew(kept.skew_s, tail, status.st_mtime)
                self._advance(kept, data, now_s)
            return kept.progress
        except OSError as error:
            return _unreadable(error, path, earlier, look)
        finally:
            os.close(descriptor)

    def _advance(self, kept: _File, data: bytes, now_s: float) -> None:
        complete, newline, _rest = data.rpartition(b"\n")
        if newline:
            kept.offset += len(complete) + 1
            kept.progress = fold(kept.progress, complete.split(b"\n"), now_s, kept.skew_s)
        elif len(data) > MAX_LINE_BYTES:  # a line without an end is skipped, or it would be read again and again
            kept.offset += len(data)
            kept.progress = fold(kept.progress, [data], now_s)


class WholeProgressSpool(ProgressSpool):
    """For a command that looks once, and may wait: each reading goes on to the end of every file."""

    def _read(self, owners: Mapping[int, int], now_s: float) -> str:
        look = self._bounded_look(owners, now_s)
        while look.is_cut and not look.fault:
            look = self._bounded_look(owners, now_s)
        return look.fault


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory with progress files: a user's own, or the spool itself with files of any user (`uid` None)."""

    name: str
    descriptor: int
    uid: int | None

    def jobs(self, owners: Mapping[int, int]) -> list[int]:
        """Jobs that have a file here, of at most `MOST_FILES` names, so that a user can hide only the user's own."""
        with os.scandir(self.descriptor) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_FILES) if _is_progress_name(entry.name)]
        found = (int(name[:-6]) for name in names)
        return sorted(job_id for job_id in found if job_id in owners and self.uid in (None, owners[job_id]))

    def close(self) -> None:
        """Close the directory."""
        os.close(self.descriptor)


def _directories(spool: int, uids: frozenset[int], look: _Look) -> Iterator[_Directory]:
    """The directories that may have files of these users, the first few of each. Unreadable ones are skipped."""
    owned: defaultdict[int, list[str]] = defaultdict(list)
    for name, uid in directories(spool):
        if uid in uids:
            owned[uid].append(name)
    for uid, names in owned.items():
        for name in heapq.nsmallest(MOST_DIRECTORIES, names):
            try:
                descriptor = open_directory(name, spool)
            except OSError as error:
                look.note(error, name)
                continue
            if os.fstat(descriptor).st_uid == uid:
                yield _Directory(name, descriptor, uid)
            else:
                os.close(descriptor)
    yield _Directory("", os.dup(spool), None)


def _unreadable(error: OSError, path: Path, earlier: _File | None, look: _Look) -> JobProgress:
    """The progress while a file cannot be read: what was read of it before."""
    look.note(error, path)
    if earlier is not None:
        return earlier.progress
    return JobProgress(refused=f"{path}: {error.strerror}")


def _note_skew(skew_s: dict[int, float], tail: bytes, written_s: float) -> None:
    """Note how far a node's clock is ahead: the time of its newest line minus that of the file, by the file server."""
    complete, _newline, _rest = tail.rpartition(b"\n")
    line = _parse(complete.rpartition(b"\n")[2])
    if line is not None and line.time_s - written_s > _SKEW_S and len(skew_s) < MAX_RUNS:
        skew_s[line.restart] = line.time_s - written_s


def fold(progress: JobProgress, lines: list[bytes], now_s: float, skew_s: Mapping[int, float] = NO_SKEW) -> JobProgress:
    """Add complete lines to a job's progress; `skew_s` is how far the clock was ahead in some runs. Pure."""
    reports, runs = list(progress.reports), {run.restart: run for run in progress.runs}
    total_steps, checkpoint_s, ended = progress.total_steps, progress.checkpoint_s, progress.ended
    exit_status, malformed, stages = progress.exit_status, progress.malformed, progress.stages
    parameters = progress.parameters
    last_step = {(r.restart, r.metric): r.step for r in reports}
    metrics = {report.metric for report in reports}
    for text in lines:
        line = _parse(text)
        if line is not None and line.restart in skew_s:
            line = msgspec.structs.replace(line, time_s=max(0.0, line.time_s - skew_s[line.restart]))
        if line is None or line.time_s > now_s + _SKEW_S:
            malformed += 1
            continue
        run = runs.get(line.restart)
        if run is None and len(runs) >= MAX_RUNS:
            malformed += 1
            continue
        run = run or Run(line.restart, line.time_s, line.time_s)
        runs[line.restart] = replace(run, end_s=max(run.end_s, line.time_s))
        if line.params is not None:
            more = parameters.plus(line.restart, line.params)
            malformed += more is None
            parameters = more or parameters
        elif line.stages is not None:
            measured = _stages(line.stages)
            malformed += measured is None
            stages = min(filter(None, (stages, measured)), default=None)
        elif line.event is not None:
            ended, exit_status = line.event == "end", line.status if line.event == "end" else None
            checkpoint_s = line.time_s if line.event == "checkpoint" else checkpoint_s
        elif line.step is None or line.value is None or line.step < last_step.get((line.restart, line.metric), 0):
            malformed += 1  # within one run steps only grow; after a requeue they start from the checkpoint
        elif line.metric not in metrics and len(metrics) >= MAX_METRICS:
            malformed += 1
        else:
            metrics.add(line.metric)
            last_step[line.restart, line.metric] = line.step
            reports.append(ProgressReport(line.time_s, line.restart, line.step, line.metric, line.value))
            total_steps = line.total_steps or total_steps
    runs_in_order = tuple(runs[restart] for restart in sorted(runs))
    return JobProgress(
        tuple(_thinned(reports)),
        runs_in_order,
        total_steps,
        checkpoint_s,
        ended,
        exit_status,
        malformed,
        parameters=parameters,
        stages=stages,
    )


def _thinned(reports: Sequence[ProgressReport]) -> Sequence[ProgressReport]:
    """At most `MAX_REPORTS`: of each metric the first, the newest, the best for either direction, and some between."""
    if len(reports) <= MAX_REPORTS:
        return reports
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, report in enumerate(reports):
        places[report.metric].append(place)
    kept: set[int] = set()
    for own in places.values():
        by_value = sorted(own, key=lambda place: reports[place].value)
        best = {own[0], own[-1], by_value[0], by_value[-1]}
        while len(own) > MAX_REPORTS // len(places):
            own = [place for at, place in enumerate(own) if at % 2 == 0 or place in best]
        kept.update(own)
    return [report for place, report in enumerate(reports) if place in kept]


def _stages(text: str) -> StageProfile | None:
    try:
        return stage_profile(text)
    except ValueError:
        return None


def _is_progress_name(name: str) -> bool:
    return name.endswith(".jsonl") and name[:-6].isascii() and name[:-6].isdigit()


def _parse(line: bytes) -> _Line | None:
    """The line; None if it is malformed."""
    if not line or len(line) > MAX_LINE_BYTES:
        return None
    try:
        read = _DECODER.decode(line)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # too deeply nested
        return None
    return read if read.is_complete() else None
