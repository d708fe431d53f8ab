"""Where the iterations of a PyTorch training spend their time: what is counted in its processes, and where.

`sitecustomize` loads this with the first module of PyTorch that gets a hook. The standard library only, and nothing of
explsched, as the training's Python may be another one than ours; the file's name is one that no training has.

Each process with an optimizer has a file of counters in the directory that EXPLSCHED_STAGES_DIRECTORY names, mapped
into its memory; `wrappers.stages` reads it. An iteration ends with a step of the first optimizer that makes one.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import ModuleType
from typing import Any

_DIRECTORY = os.environ.get("EXPLSCHED_STAGES_DIRECTORY", "")
_HEADER = struct.Struct("<14Q")  # as `wrappers.stages` reads it
_WORKER = struct.Struct("<2Q")  # nanoseconds of loading, batches
_WORKERS = 64
_SIZE = _HEADER.size + _WORKERS * _WORKER.size
_PENDING = 64
_COUNTED, _OF = 16, 160
"""Where iterations are short, so many are counted, and none until this many steps are over."""

_SHORT_NS = 10_000_000
_TIMED = 8
"""CPU time is read in one iteration of so many: it takes a system call."""

_EACH_NS = 20_000_000
"""Counters are written no more often."""

_DDP_ITERATIONS = 20
"""PyTorch times the collectives of DistributedDataParallel in one iteration of so many."""

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
_now_ns = time.perf_counter_ns
_cpu_ns = time.thread_time_ns  # of the thread that trains: those of collectives compute nothing


def _warn(text: str) -> None:
    """Tell the user, if that can be: a training must not end because its log's disk is full."""
    line = f"sxrun: {text}\n"
    stream, own = sys.stderr, sys.__stderr__  # None where it was closed before the start
    with suppress(OSError):
        if own is not None and stream is own:
            os.write(own.fileno(), line.encode(errors="backslashreplace"))  # as `explsched.errors.warn` says
        elif stream is not None:
            stream.write(line)


class _Counters:
    """What this process has counted since its first iteration, in nanoseconds."""

    def __init__(self) -> None:
        self._file: mmap.mmap | None = None
        self._optimizer: Callable[[], Any] = lambda: None
        self._lock = threading.Lock()
        self._events: deque[tuple[Any, Any]] = deque()
        self._talks: deque[tuple[Any, Any]] = deque()
        self._begun: Any = None
        self._ddp: dict[Any, tuple[int, int, int]] = {}
        self._cuda: Any = None
        self.is_timed = False
        self.resting = 0  # steps of any optimizer until counting goes on
        self._seen = 0
        self._ended_ns = self._ended_cpu_ns = 0
        self._wait_ns = self._wait_cpu_ns = self._blocked_ns = self._reads = 0  # of this iteration
        self._outstanding = self._talking_since_ns = self._published_ns = 0
        self.iterations = self.elapsed = self.waiting = self.reads = 0
        self.rest = self.rests = self.cpu = self.cpus = self.talking = 0
        self.ddp_talking = self.ddp_exposed = self.ddp_iterations = 0
        self.workers = 0

    def read(self, began_ns: int, began_cpu_ns: int, workers: int) -> None:
        """A batch has been waited for."""
        self._wait_ns += _now_ns() - began_ns
        self._reads += 1
        if self.is_timed:
            self._wait_cpu_ns += _cpu_ns() - began_cpu_ns
        self.workers = workers
        if self._file is None:
            self._file = _mapped(os.getpid())
        if self._cuda is not None and self._begun is None and not self._is_capturing():
            self._begun = self._event()

    def end_iteration(self, optimizer: Any) -> None:  # noqa: ANN401
        """An optimizer has made a step."""
        first = self._optimizer()
        if first is not optimizer:
            if first is not None:
                return
            self._optimizer = weakref.ref(optimizer)
        if self._is_capturing():
            self._ended_ns = 0  # counting begins anew after it
            return
        self._seen += 1
        now_ns = _now_ns()
        if self._ended_ns:
            self.iterations += 1
            passed_ns = now_ns - self._ended_ns
            self.elapsed += passed_ns
            self.waiting += self._wait_ns
            self.reads += self._reads
            if self._cuda is None:
                self.rest += max(0, passed_ns - self._wait_ns - self._blocked_ns)
                self.rests += 1
                self._take_cpu()
            else:
                self._take_events()
            if self._ddp and self.iterations % _DDP_ITERATIONS == 0:
                self._take_ddp()
            if now_ns - self._published_ns > _EACH_NS:
                self._published_ns = now_ns
                self._publish()
            if self._seen > _COUNTED and self.elapsed < self.iterations * _SHORT_NS and self._cuda is None:
                self.resting = _OF - _COUNTED
                self._seen = 0
                self.is_timed = False
                self._publish()
                now_ns = 0
        elif "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            self._cuda, self._begun = sys.modules["torch"].cuda, None
        self._ended_ns = now_ns
        self._wait_ns = self._wait_cpu_ns = self._blocked_ns = self._reads = 0

    def _take_cpu(self) -> None:
        """Take the CPU time of this iteration if it was timed, or begin with that of the next one."""
        if self.is_timed:
            self.cpu += _cpu_ns() - self._ended_cpu_ns - self._wait_cpu_ns
            self.cpus += 1
        self.is_timed = self.iterations % _TIMED == 0
        if self.is_timed:
            self._ended_cpu_ns = _cpu_ns()

    def talk(self, call: Callable[[], Any], *, is_on_gpu: bool, is_asynchronous: bool) -> Any:  # noqa: ANN401
        """Call a collective, and count until it is done."""
        if self.resting:
            return call()
        if is_on_gpu and self._cuda is not None:
            if is_asynchronous:
                return call()
            before = self._event_or_none()
            found = call()
            after = self._event_or_none()
            if before is not None and after is not None:
                self._talks.append((before, after))
            return found
        began_ns = self._begin_talk()
        work = None
        try:
            work = call()
        finally:
            if is_asynchronous and (future := _future(work)) is not None:
                future.add_done_callback(self._end_talk)
            else:
                self._end_talk()
                self._blocked_ns += _now_ns() - began_ns
        return work

    def watch(self, model: Any) -> None:  # noqa: ANN401
        """Let PyTorch time the collectives of a DistributedDataParallel."""
        model._set_ddp_runtime_logging_sample_rate(_DDP_ITERATIONS)
        self._ddp[weakref.ref(model)] = (0, 0, 0)

    def _begin_talk(self) -> int:
        now_ns = _now_ns()
        with self._lock:
            if self._outstanding == 0:
                self._talking_since_ns = now_ns
            self._outstanding += 1
        return now_ns

    def _end_talk(self, _future: Any = None) -> None:  # noqa: ANN401
        with self._lock:
            self._outstanding -= 1
            if self._outstanding == 0:
                self.talking += _now_ns() - self._talking_since_ns

    def _is_capturing(self) -> bool:
        """Whether a CUDA graph is made of what is called now. Whoever asks for an event meanwhile spoils it."""
        return self._cuda is not None and self._cuda.is_current_stream_capturing()

    def _event(self) -> Any:  # noqa: ANN401
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _event_or_none(self) -> Any:  # noqa: ANN401
        """An event beside a collective, whose own errors are the training's; ours are not. None while capturing."""
        try:
            return None if self._is_capturing() else self._event()
        except RuntimeError as error:
            _give_up(error)
            return None

    def _take_events(self) -> None:
        """Mark the end of an iteration in the GPU's stream, and count those that the GPU has reached."""
        end = self._event()
        self._events.append((self._begun or end, end))
        # Where no batch is read, an iteration begins with the end of the last one.
        self._begun = None if self._wait_ns else end
        while self._talks and self._talks[0][1].query():
            before, after = self._talks.popleft()
            self.talking += int(before.elapsed_time(after) * 1e6)
        while len(self._events) > 1 and (self._events[0][1].query() or len(self._events) > _PENDING):
            begin, end = self._events.popleft()
            if end.query() and begin is not end:
                self.rest += int(begin.elapsed_time(end) * 1e6)
                self.rests += 1

    def _take_ddp(self) -> None:
        """Add what PyTorch has timed since the last time; its averages are of all iterations that it has timed."""
        talking = exposed = 0
        for reference, before in list(self._ddp.items()):
            model = reference()
            if model is None:
                del self._ddp[reference]
                continue
            told = model._get_ddp_logging_data()
            timed = int(told.get("num_iterations_stats_recorded", told.get("iteration", 0)))
            all_ns = timed * int(told.get("avg_backward_comm_time", 0))
            hidden_ns = timed * int(told.get("avg_backward_compute_comm_overlap_time", 0))
            more = timed - before[0]
            if more <= 0:
                return
            talking += (all_ns - before[1]) // more
            exposed += (all_ns - before[1] - hidden_ns + before[2]) // more
            self._ddp[reference] = (timed, all_ns, hidden_ns)
        self.ddp_talking += talking
        self.ddp_exposed += exposed
        self.ddp_iterations += 1

    def _publish(self) -> None:
        if self._file is None:
            self._file = _mapped(os.getpid())
        if self._file is not None:
            numbers = (self.iterations, self.elapsed, self.waiting, self.rest, self.rests, self.cpu, self.cpus)
            talk = (self.talking, self.ddp_talking, self.ddp_exposed, self.ddp_iterations)
            is_on_gpu = self._cuda is not None
            told = (*numbers, *talk, self.workers, is_on_gpu, self.reads)
            _HEADER.pack_into(self._file, 0, *(max(0, number) for number in told))


def _mapped(process: int) -> mmap.mmap | None:
    """The counters' file of a process; None if that cannot be made, as on another node than sxrun's."""
    try:
        path = f"{_DIRECTORY}/{process}.stages"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)  # a page that a full disk has no room for is a SIGBUS
            return mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
    except OSError as error:
        global _counters
        _counters = None
        _warn(f"stages are not measured: {error}")
        return None


def _future(work: Any) -> Any:  # noqa: ANN401
    """What tells of the end of a collective; None for a backend that has no such thing."""
    try:
        return None if work is None else work.get_future()
    except (RuntimeError, NotImplementedError):
        return None


_counters: _Counters | None = _Counters()


def _give_up(error: Exception) -> None:
    """Whatever goes wrong with counting ends the measurement, and not the training."""
    global _counters
    _counters = None
    _warn(f"stages are no longer measured: {error!r}")


def _forget() -> None:
    """A forked process is another one: it counts from nothing."""
    global _counters
    if _counters is not None:
        _counters = _Counters()


def _hook_optimizer(module: ModuleType) -> None:
    def ended(optimizer: Any, _arguments: Any, _keywords: Any) -> None:  # noqa: ANN401
        counters = _counters
        if counters is None:
            return
        if counters.resting:
            counters.resting -= 1
        else:
            try:
                counters.end_iteration(optimizer)
            except Exception as error:  # PyTorch of another release
                _give_up(error)

    module.register_optimizer_step_post_hook(ended)


def _hook_loader(module: ModuleType) -> None:
    kind = module._BaseDataLoaderIter
    original = kind.__next__

    def next_batch(self: Any) -> Any:  # noqa: ANN401
        counters = _counters
        if counters is None or counters.resting:
            return original(self)
        began_cpu_ns = _cpu_ns() if counters.is_timed else 0
        began_ns = _now_ns()
        found = original(self)
        try:
            counters.read(began_ns, began_cpu_ns, self._num_workers)
        except Exception as error:  # PyTorch of another release
            _give_up(error)
        return found

    kind.__next__ = wraps(original)(next_batch)


def _hook_fetch(module: ModuleType) -> None:
    """In processes that load batches for a training, its file has a place for each of them."""
    place: list[tuple[mmap.mmap, int]] = []

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def fetch(self: Any, *arguments: Any) -> Any:  # noqa: ANN401
            parent = multiprocessing.parent_process()
            worker = sys.modules["torch.utils.data"].get_worker_info() if parent is not None else None
            if worker is None or parent is None or parent.pid is None:
                return original(self, *arguments)
            began_ns = _now_ns()
            found = original(self, *arguments)
            if not place and _counters is not None and (file := _mapped(parent.pid)) is not None:
                place.append((file, _HEADER.size + worker.id % _WORKERS * _WORKER.size))
            if place:
                file, offset = place[0]
                loading_ns, batches = _WORKER.unpack_from(file, offset)
                _WORKER.pack_into(file, offset, loading_ns + _now_ns() - began_ns, batches + 1)
            return found

        return fetch

    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        kind.fetch = timed(kind.fetch)


def _hook_collectives(module: ModuleType) -> None:
    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def collective(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
            counters = _counters  # another thread may give up meanwhile
            compiler = getattr(sys.modules["torch"], "compiler", None)  # there since PyTorch 2.1
            if counters is None or (compiler is not None and compiler.is_compiling()):
                return original(*arguments, **keywords)
            first = arguments[0] if arguments else next(iter(keywords.values()), None)
            tensor = first[0] if isinstance(first, list) and first else first
            return counters.talk(
                lambda: original(*arguments, **keywords),
                is_on_gpu=bool(getattr(tensor, "is_cuda", False)),
                is_asynchronous=bool(keywords.get("async_op", False)),
            )

        return collective

    for name in _COLLECTIVES:
        if hasattr(module, name):
            setattr(module, name, timed(getattr(module, name)))


def _hook_ddp(module: ModuleType) -> None:
    kind = module.DistributedDataParallel
    original = kind.__init__

    @wraps(original)
    def made(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401
        original(self, *arguments, **keywords)
        if _counters is not None:
            try:
                _counters.watch(self)
            except Exception as error:  # PyTorch of another release
                _give_up(error)

    kind.__init__ = made


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "torch.optim.optimizer": _hook_optimizer,
    "torch.utils.data.dataloader": _hook_loader,
    "torch.utils.data._utils.fetch": _hook_fetch,
    "torch.distributed.distributed_c10d": _hook_collectives,
    "torch.nn.parallel.distributed": _hook_ddp,
}
os.register_at_fork(after_in_child=_forget)


def hook(module: ModuleType) -> None:
    """Give a module of PyTorch, which has just been loaded, what counts there."""
    try:
        _HOOKS[module.__name__](module)
    except Exception as error:  # of a release that has other names; the training goes on
        _warn(f"stages are measured without {module.__name__}: {error!r}")
