"""What a job has reported, and how the lines of its progress file add up to it. Pure; `spool` reads the files.

The lines are written by users' jobs, so they are checked: malformed ones are counted and skipped, and what exceeds the
limits is not kept.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from explsched.parameters import LONGEST
from sched_policy.model import Parameter, ProgressPoint, StageProfile
from slurm_plugin.job_options import stage_profile

MAX_LINE_BYTES = 4096
MAX_REPORTS = 512
MAX_METRICS = 64
"""Of each job, the first; each needs a share of the reports that are kept."""
MAX_RUNS = 1024
"""More than any job is requeued."""
MAX_PARAMETERS = 64
_SKEW_S = 60.0
"""How far ahead a node's clock may be. If it is further ahead, times are corrected by the file's modification time."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """One report of one metric in the job's `restart`-th run; its value may be NaN or infinite."""

    time_s: float
    restart: int
    step: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, between two requeues, as far as its reports tell. `end_s` is its latest line.

    `under_sxrun`: whether `sxrun` has told that it begins a command.
    """

    restart: int
    start_s: float
    end_s: float
    under_sxrun: bool = False


@dataclass(frozen=True, slots=True)
class ReportedParameters:
    """The hyper-parameters that a job has reported, by run. Those of the last run count.

    `former` are those of the runs before `run`, `latest` its own. `differed` names those whose values differed
    between runs.
    """

    run: int = 0
    former: Mapping[str, Parameter] = field(default_factory=dict)
    latest: Mapping[str, Parameter] = field(default_factory=dict)
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
        before = ReportedParameters(run, self.values, {}, self.changed) if run > self.run else self
        after = replace(before, latest={**before.latest, **reported})
        return after if run >= self.run and len(after.values) <= MAX_PARAMETERS else None


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Everything a job has reported so far.

    `runs` are in order. `refused` says why its file is not read at all; `malformed` counts the lines that were skipped,
    `not_finite` the reports of NaN or an infinite value.
    `stages` has the stage times of the fastest report, since a job that shares its GPU is slower. `exit_status` is that
    of its last run, None if it reported none. `commands`: of those that this run has begun, how many have not ended.
    `script_dies`: whether the checkpoint signal would end its batch script, as far as its last run has told.
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
    commands: int = 0
    not_finite: int = 0
    script_dies: bool = False
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
        """Run time at each of the reports over all runs; a second of a run counts `weight(run)`.

        It does not fall where a node's clock was set back.
        """
        began = {run.restart: (run.start_s, weight(run.restart)) for run in self.runs}
        numbers = list(began)
        lengths_s = (weight(run.restart) * (run.end_s - run.start_s) for run in self.runs)
        before_s = list(itertools.accumulate(lengths_s, initial=0.0))
        found = []
        for report in reports:
            start_s, counts = began.get(report.restart, (report.time_s, 0))
            current_s = counts * max(0.0, report.time_s - start_s)
            found.append(before_s[bisect_left(numbers, report.restart)] + current_s)
        return list(itertools.accumulate(found, max))


_Name = Annotated[str, Meta(min_length=1, max_length=LONGEST)]
_Value = Annotated[str, Meta(max_length=LONGEST)]


class _Line(msgspec.Struct, frozen=True):
    """One line of a progress file: a report (step, metric, value), an event, hyper-parameters, or measured stages.

    Some of the others tell whether the checkpoint signal would end the batch script. Unknown keys are ignored.
    """

    time_s: Annotated[float, Meta(ge=0)]
    restart: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    event: Literal["start", "checkpoint", "end"] | None = None
    step: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    metric: Annotated[str, Meta(max_length=256)] = "loss"
    value: float | None = None
    bad: Literal["nan", "inf", "-inf"] | None = None  # what the value was: JSON has no such numbers
    total_steps: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    params: dict[_Name, bool | float | _Value] | None = None
    stages: Annotated[str, Meta(max_length=128)] | None = None
    status: Annotated[int, Meta(ge=0, le=255)] | None = None
    script_dies: bool | None = None

    def is_complete(self) -> bool:
        """Whether it has all fields of one of these."""
        says = self.event is not None or self.params is not None or self.stages is not None
        return says or (self.step is not None and self.number is not None)

    @property
    def number(self) -> float | None:
        """The reported value, which may be NaN or infinite."""
        return float(self.bad) if self.value is None and self.bad else self.value


_DECODER = msgspec.json.Decoder(_Line)


CLOCKS_APART_S = 300.0
"""How far clocks of hosts may differ: munge refuses what hosts whose clocks differ by more send to each other."""


def clock_skew(tail: bytes, written_s: float) -> dict[int, float]:
    """How far the clock of a run's node is ahead of the file server's, if more than `_SKEW_S`; empty if not.

    `tail` is how the file ends, and `written_s` when it was last written, as the file server says.
    """
    complete, _newline, _rest = tail.rpartition(b"\n")
    line = _parse(complete.rpartition(b"\n")[2])
    ahead_s = 0.0 if line is None else line.time_s - written_s
    return {line.restart: ahead_s} if line is not None and ahead_s > _SKEW_S else {}


def fold(
    progress: JobProgress,
    lines: list[bytes],
    now_s: float,
    skew_s: Mapping[int, float] = MappingProxyType({}),
    submitted_s: float = 0.0,
) -> JobProgress:
    """Add complete lines to a job's progress; `skew_s` is how far the clock was ahead in some runs. Pure.

    Lines from before `submitted_s` are those of a former job with the same id, which a new slurmctld gives out again.
    So are those before a run that begins after a later run, where that time is not known (0) or the later run reported
    nothing since: clocks may differ by as much as is between the two jobs.
    """
    found, malformed = _Sum.of(progress), progress.malformed
    for text in lines:
        line = _parse(text)
        if line is not None and line.restart in skew_s:
            line = msgspec.structs.replace(line, time_s=max(0.0, line.time_s - skew_s[line.restart]))
        if line is not None and line.time_s < submitted_s - CLOCKS_APART_S:
            continue
        if line is None or line.time_s > now_s + _SKEW_S:
            malformed += 1
            continue
        if found.is_of_former_job(line) and (not submitted_s or found.runs[found.latest].end_s < submitted_s):
            found = _Sum.of(JobProgress())
        malformed += not found.add(line)
    return found.progress(malformed)


@dataclass(slots=True)
class _Sum:
    """What the lines so far add up to. `last_step` is by run and metric; `metrics`: one text for all its reports."""

    reports: list[ProgressReport]
    runs: dict[int, Run]
    total_steps: int | None
    checkpoint_s: float | None
    ended: bool
    exit_status: int | None
    parameters: ReportedParameters
    stages: StageProfile | None
    commands: int
    not_finite: int
    script_dies: bool
    last_step: dict[tuple[int, str], int]
    metrics: dict[str, str]
    latest: int

    @classmethod
    def of(cls, so_far: JobProgress) -> Self:
        """What has been found in earlier lines."""
        return cls(
            list(so_far.reports),
            {run.restart: run for run in so_far.runs},
            so_far.total_steps,
            so_far.checkpoint_s,
            so_far.ended,
            so_far.exit_status,
            so_far.parameters,
            so_far.stages,
            so_far.commands,
            so_far.not_finite,
            so_far.script_dies,
            {(report.restart, report.metric): report.step for report in so_far.reports},
            {report.metric: report.metric for report in so_far.reports},
            max((run.restart for run in so_far.runs), default=0),
        )

    def progress(self, malformed: int) -> JobProgress:
        """All of it."""
        return JobProgress(
            tuple(_thinned(self.reports)),
            tuple(self.runs[restart] for restart in sorted(self.runs)),
            self.total_steps,
            self.checkpoint_s,
            self.ended,
            self.exit_status,
            malformed,
            None,
            self.parameters,
            self.stages,
            self.commands,
            self.not_finite,
            self.script_dies,
        )

    def is_of_former_job(self, line: _Line) -> bool:
        """Whether an earlier run than the latest begins with this line: what is known is another job's with its id.

        A process that outlives its run, as on a node that Slurm has lost, goes on in its run and does not begin it.
        """
        if line.restart >= self.latest:
            return False
        goes_back = line.step is not None and line.step < self.last_step.get((line.restart, line.metric), 0)
        return line.event == "start" or line.restart not in self.runs or goes_back

    def add(self, line: _Line) -> bool:
        """Take it in; whether it is well-formed here."""
        if line.restart not in self.runs and len(self.runs) >= MAX_RUNS:
            return False
        if line.restart > self.latest:
            self.latest, self.commands, self.ended, self.exit_status = line.restart, 0, False, None
        run = self.runs.get(line.restart) or Run(line.restart, line.time_s, line.time_s)
        under_sxrun = run.under_sxrun or line.event == "start"
        self.runs[line.restart] = Run(line.restart, run.start_s, max(run.end_s, line.time_s), under_sxrun)
        if line.restart == self.latest and line.script_dies is not None:
            self.script_dies = line.script_dies
        if line.params is not None:
            more = self.parameters.plus(line.restart, line.params)
            self.parameters = more or self.parameters
            return more is not None
        if line.stages is not None:
            measured = _stages(line.stages)
            self.stages = min(filter(None, (self.stages, measured)), default=None)
            return measured is not None
        if line.event is not None:
            if line.restart == self.latest:  # and of no process that outlives its run
                self.ended, self.exit_status = line.event == "end", line.status if line.event == "end" else None
                self.checkpoint_s = line.time_s if line.event == "checkpoint" else self.checkpoint_s
                self.commands = max(0, self.commands + (line.event == "start") - (line.event == "end"))
            return True
        is_new = self._add_report(line)
        if is_new and line.restart == self.latest and self.commands:  # the one that has ended was not the only one
            self.ended, self.exit_status = False, None
        return is_new

    def _add_report(self, line: _Line) -> bool:
        if line.step is None or line.number is None or line.step < self.last_step.get((line.restart, line.metric), 0):
            return False  # within one run steps only grow; after a requeue they start from the checkpoint
        if line.metric in self.metrics or len(self.metrics) < MAX_METRICS:
            metric = self.metrics.setdefault(line.metric, line.metric)
            self.last_step[line.restart, metric] = line.step
            self.reports.append(ProgressReport(line.time_s, line.restart, line.step, metric, line.number))
            self.not_finite += not math.isfinite(line.number)
            self.total_steps = line.total_steps or self.total_steps
        return True


def _thinned(reports: Sequence[ProgressReport]) -> Sequence[ProgressReport]:
    """At most `MAX_REPORTS`: of each metric the first, the newest, the best for either direction, and some between."""
    if len(reports) <= MAX_REPORTS:
        return reports
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, report in enumerate(reports):
        places[report.metric].append(place)
    kept: set[int] = set()
    for own in places.values():
        by_value = sorted((at for at in own if math.isfinite(reports[at].value)), key=lambda at: reports[at].value)
        best = {own[0], own[-1], *by_value[:1], *by_value[-1:]}
        while len(own) > MAX_REPORTS // len(places):
            own = [place for at, place in enumerate(own) if at % 2 == 0 or place in best]
        kept.update(own)
    return [report for place, report in enumerate(reports) if place in kept]


def _stages(text: str) -> StageProfile | None:
    try:
        return stage_profile(text)
    except ValueError:
        return None


def _parse(line: bytes) -> _Line | None:
    """The line; None if it is malformed."""
    if not line or len(line) > MAX_LINE_BYTES:
        return None
    try:
        read = _DECODER.decode(line)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # too deeply nested
        return None
    return read if read.is_complete() else None
