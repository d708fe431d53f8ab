"""`sxrun --measure-stages`: what a running training's iterations spend on reading, computing and communicating.

`in_training/_explsched_stages.py` counts inside the training's processes; here their counters are read and compared.
All stages are of an iteration that runs alone (Muri, SIGCOMM 2022, section 3), but a training may share its GPU,
validate or save meanwhile: of all windows of time the one with the fastest iterations counts.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from explsched.errors import warn
from explsched.progress import tell_stages
from wrappers.runtime_directory import RuntimeDirectory, own_place, place
from wrappers.sharing import remove_stale

DIRECTORY = "EXPLSCHED_STAGES_DIRECTORY"
_IN_TRAINING = Path(__file__).parent / "in_training"
_HEADER = struct.Struct("<14Q")
_WORKER = struct.Struct("<2Q")
_POLL_S = 1.0
_LAST_S = 5.0
_WARM_UP = 10
"""Iterations that are left out: the first ones tune kernels and fill caches."""

_WINDOW = 20
"""Iterations that a window has at least."""

_POLLS = 5
"""A window lasts at least so many polls."""

_FASTER = 0.97
"""Windows that are not faster by more tell nothing new."""

_READS = 100


class Counters(NamedTuple):
    """What the processes of a training have counted: sums over all iterations, times in nanoseconds.

    Attributes:
        iterations: iterations that have ended.
        elapsed: from the first one's begin to the last one's end.
        waiting: waiting for a batch.
        rest: on a CPU neither that nor in a collective that blocks; on a GPU from the batch to the step, by its clock.
        rests: iterations of which `rest` is known.
        cpu: CPU time of the training thread outside of waiting for a batch, of some of the iterations on a CPU.
        cpus: how many these are.
        talking: in collectives that the training calls.
        ddp_talking, ddp_exposed: those of DistributedDataParallel, and what of it no computation hides.
        ddp_iterations: iterations of which these two are known.
        workers: processes that load batches.
        is_on_gpu: 1 if the training computes on a GPU.
        reads: batches that these iterations have waited for.
        loading: loading batches in those processes, all of them together.
        batches: how many these are, also for iterations that are not counted.

    """

    iterations: int
    elapsed: int
    waiting: int
    rest: int
    rests: int
    cpu: int
    cpus: int
    talking: int
    ddp_talking: int
    ddp_exposed: int
    ddp_iterations: int
    workers: int
    is_on_gpu: int
    reads: int
    loading: int = 0
    batches: int = 0

    @classmethod
    def read(cls, path: Path) -> Counters | None:
        """Those in a process's file; None while it has none. Raises OSError."""
        data = path.read_bytes()
        for _ in range(_READS):  # what is read while it is written may be half of each
            before, data = data, path.read_bytes()
            if before[: _HEADER.size] == data[: _HEADER.size]:
                break
        if len(data) < _HEADER.size:
            return None
        loading, batches = map(sum, zip(*_WORKER.iter_unpack(data[_HEADER.size :]), strict=True))
        found = cls._make((*_HEADER.unpack_from(data), loading, batches))
        return found if found.iterations else None


class MeasuredStages(NamedTuple):
    """Milliseconds of an iteration and of its stages, as `--stages` has them."""

    iteration_ms: float
    io_ms: float
    gpu_ms: float
    net_ms: float

    def __str__(self) -> str:
        return "/".join(f"{part:.6f}".rstrip("0").rstrip(".") for part in self)


def between(before: Counters, after: Counters) -> MeasuredStages:
    """The stages of the iterations between two readings, at least one, of one process.

    Workers load while the training computes. Reading takes what they need for a batch when all of them work; where
    the training waits longer, that.
    """
    n = after.iterations - before.iterations
    waiting = after.waiting - before.waiting
    of_batch = (after.loading - before.loading) / max(after.batches - before.batches, 1)
    loading = of_batch * (after.reads - before.reads) / max(after.workers, 1)
    timed = (after, before) if after.ddp_iterations > before.ddp_iterations else (after, _NOTHING)
    ddp = max(timed[0].ddp_iterations - timed[1].ddp_iterations, 1)
    talking = (after.talking - before.talking) / n + (timed[0].ddp_talking - timed[1].ddp_talking) / ddp
    exposed = (timed[0].ddp_exposed - timed[1].ddp_exposed) / ddp
    computing = (after.rest - before.rest) / max(after.rests - before.rests, 1) - exposed
    if after.cpus > before.cpus:
        computing = min(computing, (after.cpu - before.cpu) / (after.cpus - before.cpus))
    elapsed = (after.elapsed - before.elapsed) / n
    parts_ns = (elapsed, max(waiting, loading) / n, max(computing, 0.0), talking)
    return MeasuredStages(*(part / 1e6 for part in parts_ns))


_NOTHING = Counters(*(14 * [0]))


class Meter:
    """Compares readings of the counters of all processes of a training, and keeps the fastest window."""

    def __init__(self) -> None:
        self.best: MeasuredStages | None = None
        self._begun: dict[str, tuple[int, Counters]] = {}
        self._looks = 0

    def look(self, counters: Mapping[str, Counters], *, is_last: bool = False) -> MeasuredStages | None:
        """Take the next reading, by process; the stages if they are news."""
        self._looks += 1
        found = []
        for name, now in counters.items():
            looks, before = self._begun.get(name, (self._looks, None))
            if before is None:
                if now.iterations >= _WARM_UP:
                    self._begun[name] = (self._looks, now)
                continue
            is_long = self._looks - looks >= _POLLS or (is_last and self.best is None)
            if now.iterations - before.iterations >= _WINDOW and is_long:
                found.append(between(before, now))
                self._begun[name] = (self._looks, now)
        if not found:
            return None
        means = MeasuredStages(*(sum(parts) / len(found) for parts in zip(*found, strict=True)))
        if self.best is not None and means.iteration_ms >= _FASTER * self.best.iteration_ms:
            return None
        self.best = means
        return means


@contextmanager
def measured(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The command's environment; while it runs, and at its end, its stages are reported."""
    remove_stale({place(environment).parent, place({}).parent})
    place_of_counters = own_place(environment)
    try:
        room = RuntimeDirectory(place_of_counters)
    except OSError as error:  # no name where a file system has no locks
        shutil.rmtree(place_of_counters, ignore_errors=True)  # a random name, which only we have
        warn("sxrun", f"stages are not measured: {error.filename or place_of_counters}: {error.strerror}")
        yield dict(environment)
        return
    path = ":".join(filter(None, (str(_IN_TRAINING), environment.get("PYTHONPATH", ""))))
    ended = Event()
    # Of several tasks of a step each measures, and the first one tells.
    tell = tell_stages if environment.get("SLURM_PROCID", "0") == "0" else _nobody
    thread = Thread(target=_follow, args=(room.path, tell, ended), daemon=True)
    thread.start()
    try:
        yield {**environment, DIRECTORY: str(room.path), "PYTHONPATH": path}
    finally:
        ended.set()
        thread.join(_LAST_S)
        _leave(room)


def _leave(room: RuntimeDirectory) -> None:
    try:
        with suppress(FileNotFoundError):  # a cleaner of /tmp, or the command, has removed it
            room.close(lambda: None)
    except OSError as error:
        warn("sxrun", f"{error.filename or room.path}: {error.strerror}")


def _nobody(_stages: str) -> None:
    """Tell nobody."""


def _follow(directory: Path, tell: Callable[[str], None], ended: Event) -> None:
    meter = Meter()
    is_last, seen = False, 0
    while not is_last:
        is_last = ended.wait(_POLL_S)
        counters: dict[str, Counters] = {}
        for path in sorted(directory.glob("*.stages")):
            if (found := Counters.read(path)) is not None:
                counters[path.name] = found
        seen = max((seen, *(each.iterations for each in counters.values())))
        news = meter.look(counters, is_last=is_last)
        if news is not None:
            tell(str(news))
    if meter.best is not None:
        iteration, io, gpu, net = meter.best
        warn(
            "sxrun",
            f"an iteration takes {iteration:.4g} ms: reading {io:.4g}, computing {gpu:.4g}, "
            f"communicating {net:.4g}; --stages {meter.best}",
        )
    else:
        why = f"{seen} iterations were counted, too few" if seen else "no iteration of a PyTorch training was seen"
        warn("sxrun", f"stages are not measured: {why} ({_WARM_UP} warm up, {_WINDOW} more count; read once a second)")
