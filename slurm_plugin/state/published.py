"""The state as it is published: one JSON file that the daemon replaces after each pass.

Light: reading it needs neither numpy nor the policies. What only some readers want stays encoded until they ask.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Container
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

FILE = "state.json"
PROGRESS = "progress"
"""Word among the private things: what a job reports concerns its owner, though all may see that there is the job."""

_FORM = 1
_STALE_PASSES = 3
_STALE_S = 60.0
_Part = TypeVar("_Part")


class JobRow(Struct, frozen=True):
    """One line of `status`. `utility` is in percent of the sweep's known improvement per GPU-hour.

    `params` are its hyper-parameters; `params_changed` counts those that differed between its runs.
    `restarts` are all requeues, `preempted` those by explsched, and `lost_gpu_s` the work they cost.
    """

    jobid: int
    partition: str
    name: str
    user: str
    state: str
    gpus: int
    tasks: int
    sweep: str
    step: str
    metric: str
    value: float | None
    utility: float | None
    score: float | None
    gpu_hours: float
    restarts: int
    preempted: int
    lost_gpu_s: float
    planned: str
    reservation: str
    device: str
    sharing: str
    malformed: int
    params: str
    params_changed: int
    reason: str


COLUMNS = tuple(JobRow.__struct_fields__)


class Explanation(Struct, frozen=True):
    """What there is to say about one job. One that is not steered has no row, and one sentence that says why."""

    jobid: int
    user: str
    is_steered: bool
    sentences: tuple[str, ...]


class Curve(Struct, frozen=True):
    """What a job reported: (step, value), thinned out. `state` is ENDED for a training of a sweep that is over."""

    jobid: int
    user: str
    name: str
    sweep: str
    metric: str
    state: str
    points: tuple[tuple[int, float], ...]


class NodeRow(Struct, frozen=True):
    """One node, and how many GPUs which job holds there."""

    name: str
    state: str
    gpus: int
    partitions: tuple[str, ...]
    jobs: tuple[tuple[int, int], ...]


class LeaseRow(Struct, frozen=True):
    """One reservation. `job` is the one that a lease of ours is for, None for a reservation of the site's."""

    name: str
    job: int | None
    nodes: tuple[str, ...]
    start_s: float | None
    end_s: float | None


class PlanLine(Struct, frozen=True):
    """One line of `plan`: what (start, promise, preempt, ...), for which jobs, and the words for people."""

    kind: str
    jobs: tuple[int, ...]
    text: str


class Sample(Struct, frozen=True):
    """The cluster at one moment."""

    time_s: float
    gpus: int
    busy_gpus: int
    running: int
    waiting: int


class Totals(Struct, frozen=True):
    """What the daemon has done since it started, and how long its last pass took. Counters but for the last."""

    passes: int = 0
    failed_passes: int = 0
    writes: int = 0
    refusals: int = 0
    preemptions: int = 0
    stops: int = 0
    audit_faults: int = 0
    pass_s: float = 0.0


class State(Struct, frozen=True):
    """What one pass saw and planned. Times are seconds since the epoch.

    `source` is `daemon`, or `slurm` where a command has looked itself. `private` has words of Slurm's PrivateData, and
    `PROGRESS`. `explanations`, `curves`, `plan` and `changes` are read by the functions of the same names.
    """

    written_s: float
    interval_s: float
    policy: str
    cluster: str
    private: tuple[str, ...]
    totals: Totals
    jobs: tuple[JobRow, ...]
    nodes: tuple[NodeRow, ...]
    leases: tuple[LeaseRow, ...]
    samples: tuple[Sample, ...]
    explanations: Raw
    curves: Raw
    plan: Raw
    changes: Raw
    source: str = "daemon"
    form: int = _FORM

    def age_s(self, now_s: float) -> float:
        """How long ago the pass was."""
        return max(0.0, now_s - self.written_s)

    def is_stale(self, now_s: float) -> bool:
        """Whether the daemon should have written another one long ago."""
        return self.age_s(now_s) > _STALE_PASSES * self.interval_s + _STALE_S

    def explanation(self, job_id: int) -> Explanation | None:
        """What there is to say about a job; None for one that neither waits nor runs."""
        found = part(self.explanations, tuple[Explanation, ...])
        return next((one for one in found if one.jobid == job_id), None)


def part(encoded: Raw, kind: type[_Part]) -> _Part:
    """A part of the state that had been left encoded."""
    return msgspec.json.decode(encoded, type=kind)


def encoded(value: object) -> Raw:
    """A part of the state, left encoded until somebody wants it."""
    return Raw(msgspec.json.encode(value))


def read(directory: Path) -> State | None:
    """The published state; None where there is none that this user may read, or none of this release."""
    try:
        descriptor = os.open(directory / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            found = msgspec.json.decode(file.read(), type=State)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            return None
    return found if found.form == _FORM else None


def seen_by(state: State, user: str) -> State:
    """What a user may see: all of it, or only what is his where Slurm hides other people's jobs (PrivateData)."""
    if not state.private:
        return state
    if state.private == (PROGRESS,):
        return _without_progress(state, user)
    own = [row for row in state.jobs if row.user == user]
    explained = part(state.explanations, tuple[Explanation, ...])
    hidden = frozenset(str(one.jobid) for one in explained if one.user != user)
    ours = {one.jobid for one in explained if one.user == user}
    kept = [
        replace(one, sentences=tuple(_without(text, hidden) for text in one.sentences))
        for one in explained
        if one.user == user
    ]
    shows_nodes = "nodes" not in state.private
    nodes = [
        replace(node, jobs=tuple(held for held in node.jobs if held[0] in ours)) for node in state.nodes if shows_nodes
    ]
    plan = [line for line in part(state.plan, tuple[PlanLine, ...]) if line.jobs and ours.issuperset(line.jobs)]
    changes = [change for change in part(state.changes, tuple[Change, ...]) if change.jobid in ours]
    return replace(
        state,
        jobs=tuple(
            replace(row, reason=_without(row.reason, hidden), sharing=_without(row.sharing, hidden)) for row in own
        ),
        nodes=tuple(nodes),
        leases=tuple(lease for lease in state.leases if lease.job in ours),
        samples=state.samples if shows_nodes else (),
        explanations=encoded(kept),
        curves=encoded([curve for curve in part(state.curves, tuple[Curve, ...]) if curve.user == user]),
        plan=encoded([replace(line, text=_without(line.text, hidden)) for line in plan]),
        changes=encoded([replace(change, text=_without(change.text, hidden)) for change in changes]),
    )


def _without_progress(state: State, user: str) -> State:
    """Everybody's jobs, but what they report and what follows from it for the user's own only."""
    hidden = {"step": "-", "value": None, "utility": None, "score": None, "params": "", "params_changed": 0}
    rows = tuple(
        row if row.user == user else replace(row, **hidden, reason=row.reason.partition(";")[0] if row.planned else "")
        for row in state.jobs
    )
    explained = part(state.explanations, tuple[Explanation, ...])
    ours = {one.jobid for one in explained if one.user == user}
    plan = part(state.plan, tuple[PlanLine, ...])
    return replace(
        state,
        jobs=rows,
        explanations=encoded(
            [one if one.user == user else replace(one, sentences=one.sentences[:1]) for one in explained]
        ),
        curves=encoded([curve for curve in part(state.curves, tuple[Curve, ...]) if curve.user == user]),
        plan=encoded([line if ours.issuperset(line.jobs) else replace(line, text="") for line in plan]),
    )


class Change(Struct, frozen=True):
    """One change that the pass made, or that a command's look would need; `jobid` is None for one of no job."""

    jobid: int | None
    text: str


def _without(text: str, hidden: Container[str]) -> str:
    """A text without the ids of hidden jobs. A number that happens to be such an id goes, too."""
    return re.sub(r"\d+", lambda found: "another" if found[0] in hidden else found[0], text)


def clock(time_s: float | None) -> str:
    """A point in time as Slurm prints it, local; N/A for None."""
    if time_s is None or time_s == float("inf"):
        return "N/A"
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
