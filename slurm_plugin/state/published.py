"""The published state: one JSON file that the daemon replaces after each pass.

Reading it needs neither numpy nor the policies. Parts that only some commands need stay encoded until `part`.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from explsched.parameters import Parameter

FILE = "state.json"
PROGRESS = "progress"
"""In `State.private`: what jobs report may be seen by their owners only, though all may see that the jobs exist."""

_FORM = 3
_OVER = frozenset({"COMPLETED", "ENDED"})
_STALE_PASSES = 3
_STALE_S = 60.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TO_ANSWER_S = 5.0
HIDDEN = 0
"""In place of the id of a job that the reader may not see."""

_Part = TypeVar("_Part")


class JobRow(Struct, frozen=True):
    """One line of `status`. `utility` is in percent of the sweep's known improvement per GPU-hour.

    `gpus` are those that it holds, or asks for while it waits.
    `params` are its hyper-parameters; `params_changed` counts those that differed between its runs.
    `restarts` are all requeues, `preempted` those by explsched, and `lost_gpu_s` the work they cost. `belongs_to` is
    the id of the array or heterogeneous job that it is a part of, else its own; 0 if a former release wrote the row.
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
    belongs_to: int = 0


COLUMNS = tuple(JobRow.__struct_fields__)


def states(rows: Iterable[JobRow]) -> Counter[str]:
    """How many jobs are running (hold GPUs), waiting, or paused: those that have run and wait again.

    Each task of an array is one, as in sdiag.
    """
    found: Counter[str] = Counter()
    for row in rows:
        found["running" if row.state != "PENDING" else "paused" if row.restarts else "waiting"] += row.tasks
    return found


class Explanation(Struct, frozen=True):
    """What `explain` says about one job. A job that is not steered has no row, and one sentence that says why."""

    jobid: int
    user: str
    is_steered: bool
    sentences: tuple[str, ...]


class Curve(Struct, frozen=True):
    """The reports of a job as (step, value); of many only some are kept.

    `state` is COMPLETED for a training of a sweep that has reached its end, ENDED for one that ended otherwise, with
    what it reported of that in `failure`. `direction` is `min` or `max`, `best` the best value so far, `run_s` the run
    time of all runs, `whole_s` that to its last step, None if its steps do not tell; `gpus` are parts of GPUs for a job
    on shards. Of a training that `diverged` the best value does not count.
    """

    jobid: int
    user: str
    name: str
    sweep: str
    metric: str
    state: str
    direction: str
    best: float
    gpus: float
    run_s: float
    total_steps: int | None
    params: tuple[tuple[str, Parameter], ...]
    points: tuple[tuple[int, float], ...]
    failure: str = ""
    gpu_hours: float = 0.0
    whole_s: float | None = None
    diverged: bool = False

    @property
    def rank(self) -> tuple[bool, float]:
        """A key by which the best of a sweep comes first."""
        return self.diverged, -self.best if self.direction == "max" else self.best

    @property
    def is_over(self) -> bool:
        """Whether the training neither waits nor runs."""
        return self.state in _OVER


class NodeRow(Struct, frozen=True):
    """One node; `jobs` has (job, GPUs that it holds there), `devices` the holders of each GPU, by index.

    If Slurm does not show which GPUs a job holds, it is listed on the first ones without known holders. `HIDDEN` is in
    place of jobs that the reader may not see.
    """

    name: str
    state: str
    gpus: int
    partitions: tuple[str, ...]
    jobs: tuple[tuple[int, int], ...]
    devices: tuple[tuple[int, ...], ...]


class LeaseRow(Struct, frozen=True):
    """One reservation. `job` is the job that a lease is for, None for a reservation of the site."""

    name: str
    job: int | None
    nodes: tuple[str, ...]
    start_s: float | None
    end_s: float | None


class PlanLine(Struct, frozen=True):
    """One line of `plan`: its kind (start, reserve, preempt, ...), the jobs, and a description."""

    kind: str
    jobs: tuple[int, ...]
    text: str


class Sample(Struct, frozen=True):
    """GPUs and jobs of the cluster at one time, for the history on the web page; waiting tasks of arrays are jobs.

    `gpus_waited_for` are those of jobs that Slurm would start if it had the GPUs, `reporting` are the running jobs that
    have reported any metric, whether it counts for their sweep or not.
    """

    time_s: float
    gpus: int
    busy_gpus: int
    running: int
    waiting: int
    gpus_waited_for: int = 0
    reporting: int = 0


class Totals(Struct, frozen=True):
    """Counters since the daemon started, and in `pass_s` how long its last pass took."""

    passes: int = 0
    failed_passes: int = 0
    writes: int = 0
    refusals: int = 0
    preemptions: int = 0
    stops: int = 0
    audit_faults: int = 0
    pass_s: float = 0.0


class State(Struct, frozen=True):
    """What one pass saw and planned. Times are seconds since the epoch by slurmctld's clock.

    `written_s` is when Slurm was read, by the clock of the host that did: readers compare it with their own. `source`
    is `daemon`, or `slurm` if a command has asked Slurm. `private` has words of Slurm's PrivateData, and `PROGRESS`.
    `explanations`, `curves`, `plan` and `changes` are decoded by `part`.
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
        """The age from which the state is stale: a running daemon would have replaced it long before."""
        return _STALE_PASSES * self.interval_s + _STALE_S

    def is_stale(self, now_s: float) -> bool:
        """Whether the daemon seems not to run any more."""
        return self.age_s(now_s) > self.stale_after_s

    def explanation(self, job_id: int) -> Explanation | None:
        """The explanation of a job; None for one that neither waits nor runs."""
        found = part(self.explanations, tuple[Explanation, ...])
        return next((one for one in found if one.jobid == job_id), None)


def part(encoded: Raw, kind: type[_Part]) -> _Part:
    """Decode one of the encoded parts of a state."""
    return msgspec.json.decode(encoded, type=kind)


def encoded(value: object) -> Raw:
    """Encode a part of a state, for `part`."""
    return Raw(msgspec.json.encode(value))


def read(directory: Path) -> State | None:
    """The published state; None if there is none, this user may not read it, or it is of another release."""
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
    """What the calling user may see, from the socket; None if neither root nor the directory's owner serves it."""
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
    """Decode a state; None if it is invalid or of another release."""
    try:
        found = msgspec.json.decode(text, type=State)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    return found if found.form == _FORM else None


class Change(Struct, frozen=True):
    """A change of Slurm that the pass made, or that a daemon would make; `jobid` is None if it concerns no job."""

    jobid: int | None
    text: str
