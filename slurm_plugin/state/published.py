"""The state as it is published: one JSON file that the daemon replaces after each pass.

Light: reading it needs neither numpy nor the policies. What only some readers want stays encoded until they ask.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from explsched.parameters import Parameter

FILE = "state.json"
PROGRESS = "progress"
"""Word among the private things: what a job reports concerns its owner, though all may see that there is the job."""

_FORM = 2
_OVER = frozenset({"COMPLETED", "ENDED"})
_STALE_PASSES = 3
_STALE_S = 60.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TO_ANSWER_S = 5.0
HIDDEN = 0
"""Stands for the id of a job that the reader may not see."""

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
    """What a job reported: (step, value), thinned out.

    `state` is COMPLETED for a training of a sweep that came to its end, ENDED for one that is over in another way;
    `failure` is what it told of that. `direction` is `min` or `max`, `best` its best value so far, `run_s` the run time
    of all its runs.
    """

    jobid: int
    user: str
    name: str
    sweep: str
    metric: str
    state: str
    direction: str
    best: float
    gpus: int
    run_s: float
    total_steps: int | None
    params: tuple[tuple[str, Parameter], ...]
    points: tuple[tuple[int, float], ...]
    failure: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the training neither waits nor runs."""
        return self.state in _OVER


class NodeRow(Struct, frozen=True):
    """One node, and how many GPUs which job holds there. `devices` has the holders of each GPU, by index.

    Which GPUs a job holds is known where Slurm tells; otherwise it stands on the first ones that are left. A holder of
    `HIDDEN` is a job that the reader may not see.
    """

    name: str
    state: str
    gpus: int
    partitions: tuple[str, ...]
    jobs: tuple[tuple[int, int], ...]
    devices: tuple[tuple[int, ...], ...]


class LeaseRow(Struct, frozen=True):
    """One reservation. `job` is the one that a lease of ours is for, None for a reservation of the site's."""

    name: str
    job: int | None
    nodes: tuple[str, ...]
    start_s: float | None
    end_s: float | None


class PlanLine(Struct, frozen=True):
    """One line of `plan`: what (start, reserve, preempt, ...), for which jobs, and a description."""

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

    @property
    def stale_after_s(self) -> float:
        """The age at which the daemon should have written another one long ago."""
        return _STALE_PASSES * self.interval_s + _STALE_S

    def is_stale(self, now_s: float) -> bool:
        """Whether the daemon should have written another one long ago."""
        return self.age_s(now_s) > self.stale_after_s

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
        return decoded(file.read()) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def peer(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


def ask(path: Path) -> State | None:
    """What whoever calls may see, from the daemon's socket; None if nobody serves it who owns its directory."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TO_ANSWER_S)
            connection.connect(str(path))
            if peer(connection) not in (0, path.parent.stat().st_uid):
                return None
            with connection.makefile("rb") as file:
                return decoded(file.read())
    except OSError:
        return None


def decoded(text: bytes) -> State | None:
    """A state as it is written and sent; None if it is none of this release."""
    try:
        found = msgspec.json.decode(text, type=State)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    return found if found.form == _FORM else None


class Change(Struct, frozen=True):
    """One change that the pass made, or that a command's look would need; `jobid` is None for one of no job."""

    jobid: int | None
    text: str
