"""HAProxy's process: start, find, reload and stop it; and its access log. It outlives the process that starts it.

HAProxy runs as a master with one worker. A reload starts a new worker that takes over the listening sockets; the old
one finishes its requests. No request is lost.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from explsched import process
from explsched.process import ProcessId
from inference_gateway.dataplane import runtime
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.errors import NotRunningError, StartError

_START_S = 20.0

# By default glibc returns large blocks to the system at once: two system calls and page faults for every buffer.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
# Huge pages save TLB misses, because the buffers of many requests are far apart. A site's own setting takes precedence;
# a glibc before 2.35 ignores this one.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True, slots=True)
class HaproxyProcess:
    """The HAProxy of one directory."""

    files: Files

    def pid(self) -> int | None:
        """The master's process id, None if it does not run. A recycled id is detected by the command line."""
        found = self._found()
        return found.pid if found else None

    def check(self) -> None:
        """Let HAProxy check the configuration. Raises `StartError` with its messages."""
        try:
            done = subprocess.run(
                [_program(), "-c", "-f", str(self.files.configuration)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StartError(f"{self.files.configuration}: HAProxy has not read it within 60 s") from error
        if done.returncode != 0:
            raise StartError(f"{self.files.configuration}: HAProxy refuses it: {_alerts(done.stderr)}")

    def start(self, predecessor: Files | None = None) -> None:
        """Start HAProxy and wait until it answers. Raises `StartError`.

        With a `predecessor` on this host the listening socket is inherited from it, so that connections are accepted
        without interruption; the predecessor continues to listen until it is stopped.
        """
        inherited = ["-x", str(self._socket_of(predecessor))] if predecessor else []
        log_size = self.files.messages.stat().st_size if self.files.messages.exists() else 0
        argv = [
            # `global`: buffers of `body_buffer_kib` overflow a thread's memory pool, and without a shared pool every
            # allocation goes to the C library (10 % of the CPU per request). `no-tag`: the tags at the ends of memory
            # blocks that Debian's build checks cost another 10 %.
            *(_program(), "-dMglobal,no-tag", "-W", "-f", str(self.files.configuration), "-p", str(self.files.pid)),
            *("-S", f"{self.files.master_socket},mode,600,level,admin"),
            *inherited,
        ]
        try:
            child = self._start(argv)
        except OSError as error:
            raise StartError(f"{error.filename or self.files.directory}: {error.strerror}") from error

        def ended() -> str:
            if child.poll() is None:
                return ""
            return self._alerts_since(log_size) or f"it ended with {child.returncode}"

        try:
            self._await_worker(lambda _: True, ended)
        except StartError:
            self.stop(grace_s=0.0)  # if it came up later it would take requests that nothing supervises
            raise

    def _socket_of(self, predecessor: Files) -> Path:
        """A name of the predecessor's socket in our directory: through /proc its own may be too long for a socket."""
        name = self.files.predecessor_socket
        try:
            name.unlink(missing_ok=True)
            name.symlink_to(predecessor.stats_socket)
        except OSError as error:
            raise StartError(f"{name}: cannot be made: {error.strerror}") from error
        return name

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        lines = opened_pipe(self.files.access_pipe)
        try:
            return process.start(argv, self.files.directory, environment(), self.files.messages, lines)
        finally:
            os.close(lines)

    def reload(self) -> None:
        """Let a new worker read the configuration and take over. Raises `StartError`, `NotRunningError`.

        If the new worker does not start, the old one continues.
        """
        before = self.workers()
        log_size = self.files.messages.stat().st_size
        RuntimeApi(self.files.master_socket).ask("reload")
        self._await_worker(lambda now: now.current != before.current, lambda: self._failed_since(before, log_size))

    def workers(self) -> runtime.Workers:
        """The current and old workers. Raises `NotRunningError`."""
        return runtime.workers(RuntimeApi(self.files.master_socket).ask("show proc"))

    def finish(self) -> None:
        """Take no new requests, and end after the last one. Its master answers meanwhile, the stats socket does not."""
        found = self._found()
        if found is not None:
            process.send(found, signal.SIGUSR1)

    def stop(self, grace_s: float = 5.0) -> None:
        """Give its requests `grace_s` to finish, then end it. Does nothing if it does not run."""
        found = self._found()
        if found is not None:
            process.stop([found], [(signal.SIGUSR1, grace_s), *process.TERM_THEN_KILL])

    def _found(self) -> ProcessId | None:
        return process.recorded(self.files.pid, self.files.as_argument(self.files.configuration))

    def _failed_since(self, before: runtime.Workers, log_size: int) -> str:
        try:
            now = self.workers()
        except NotRunningError:
            return ""  # the master is re-executing itself
        failed = now.failed_reloads > before.failed_reloads
        return (self._alerts_since(log_size) or "the new worker failed") if failed else ""

    def _alerts_since(self, start: int) -> str:
        with self.files.messages.open("rb") as messages:
            messages.seek(start)
            return _alerts(messages.read().decode(errors="replace"))

    def _await_worker(self, wanted: Callable[[runtime.Workers], bool], fault: Callable[[], str]) -> None:
        """Wait until a wanted worker answers on the stats socket."""
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            problem = fault()
            if problem:
                raise StartError(f"HAProxy does not start in {self.files.directory}: {problem}")
            try:
                workers = self.workers()
                if wanted(workers) and f"\nPid: {workers.current}\n" in RuntimeApi(self.files.stats_socket).ask(
                    "show info"
                ):
                    return
            except NotRunningError:
                pass  # not yet
            time.sleep(0.01)
        raise StartError(f"HAProxy in {self.files.directory} does not answer {_START_S:g} s after its start")


def _program() -> str:
    """HAProxy's path, also where Debian installs it: not on its users' PATH. Raises `StartError`."""
    directories = [*os.get_exec_path(), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    found = shutil.which("haproxy", path=os.pathsep.join(directories))
    if found is None:
        raise StartError("haproxy is neither on PATH nor in /usr/sbin (Debian package haproxy)")
    return found


def environment() -> dict[str, str]:
    """The environment of the data plane's processes: ours, with settings for glibc's allocator."""
    return {**_HUGE_PAGES, **os.environ, **_KEEP_MEMORY}


def affordable_connections(wanted: int, replicas: int) -> int:
    """The number of client connections, at most `wanted`, that the limit on open files allows.

    A connection needs two files, and half a one more for long bodies; a replica two, for checks and idle connections.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return wanted
    return max(10, min(wanted, (most_files - 2 * replicas - 500) * 2 // 5))


def _alerts(text: str) -> str:
    """HAProxy's alerts, without those that only summarise the others."""
    lines = [line.partition(" : ")[2] or line for line in text.splitlines() if "[ALERT]" in line]
    causes = [line for line in lines if "Fatal errors" not in line and "Error(s) found" not in line]
    return "; ".join((causes or lines or text.splitlines())[:5])


SIZE = 1 << 20
"""Wanted capacity of the pipe in bytes: the most that Linux allows without privileges by default."""


def opened_pipe(path: Path) -> int:
    """Open the pipe, creating it if necessary; returns a non-blocking file descriptor. Raises `OSError`."""
    with suppress(FileExistsError):  # left by an earlier HAProxy, or in use
        os.mkfifo(path, 0o600)
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with suppress(PermissionError):  # the user's limit for large pipes is reached: the default holds 200 lines
        fcntl.fcntl(handle, fcntl.F_SETPIPE_SZ, SIZE)
    return handle


_POLL_S = 0.5
_REST_S = 0.05
_LOG = logging.getLogger("explsched.gateway.activator")


@dataclass(slots=True)
class AccessLogWriter:
    """Copies HAProxy's access log from its pipe to its file, many lines at a time. Requests alone: see `_requests`.

    HAProxy 2.6 does not escape backslashes, which occur only in paths, for JSON. If the disk is full, lines are lost
    and counted in `lost_lines`; nothing else happens. If nothing reads the pipe it fills up, and HAProxy drops further
    lines (`DroppedLogs` in its `show info`).
    """

    source: int
    target: Path
    lost_lines: int = 0
    _ending: threading.Event = field(default_factory=threading.Event)
    _torn: bool = False

    def run(self) -> None:
        """Copy lines until `end` is called, then what is left in the pipe."""
        while not self._ending.is_set():
            select.select([self.source], [], [], _POLL_S)
            if self._copy() < SIZE // 4:
                self._ending.wait(_REST_S)  # let lines gather: one write for all of them
        while self._copy():
            pass

    def end(self) -> None:
        """Let `run` return."""
        self._ending.set()

    def _copy(self) -> int:
        """Copy what is in the pipe; returns the number of bytes."""
        try:
            read = os.read(self.source, SIZE)
        except BlockingIOError:
            return 0
        lines = _requests(read)
        try:
            self._write(lines.replace(b"\\", b"\\\\"))
        except OSError as error:
            if not self.lost_lines:
                _LOG.warning("access log: lines are lost, %s: %s", self.target, error.strerror)
            self.lost_lines += lines.count(b"\n")
        return len(read)

    def _write(self, lines: bytes) -> None:
        # Opened each time, so that a new file is created after the old one was moved away or removed.
        handle = os.open(self.target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview(b"\n" + lines if self._torn else lines)
            while left:
                written = os.write(handle, left)
                self._torn = True
                left = left[written:]
            self._torn = False
        finally:
            os.close(handle)


def _requests(read: bytes) -> bytes:
    """The lines about requests. What HAProxy tells of itself, such as a failed TLS handshake, goes to our own log."""
    lines = read.splitlines(keepends=True)
    for line in lines:
        if not line.startswith(b"{") and line.strip():
            _LOG.info("HAProxy: %s", line.decode(errors="replace").strip())
    return b"".join(line for line in lines if line.startswith(b"{"))
