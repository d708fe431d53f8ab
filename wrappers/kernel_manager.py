"""The native parts as a job needs them: the interposer for LD_PRELOAD, and a kernel manager (`sexplkmd`) of its own.

A job starts a manager where the node has none. Several jobs may share it. The job that started it may end first, and
Slurm ends all processes of a job that has ended. The interposers of the others let all kernels pass meanwhile and find
the next manager by themselves, so somebody only has to start it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from explsched.errors import warn
from wrappers.runtime_directory import RuntimeDirectory

SOCKET_VARIABLE = "EXPLSCHED_KM_SOCKET"
LIBRARY_VARIABLE = "EXPLSCHED_INTERCEPT_LIBRARY"
MANAGER_VARIABLE = "EXPLSCHED_KM"
_LIBRARY = Path("kernel_intercept/lib/libexplsched_intercept.so")
_MANAGER = "sexplkmd"
_PRELOAD = "LD_PRELOAD"
_PRELOAD_S = 10.0
_START_S, _POLL_S, STOP_MS = 5.0, 0.01, 5000


class NotInstalledError(Exception):
    """A native part is missing; the message says where it was looked for."""


def library(environment: Mapping[str, str]) -> Path:
    """The interposer. Raises `NotInstalledError`."""
    named = environment.get(LIBRARY_VARIABLE)
    # An editable install has the Python files in the source tree and the library among the installed packages.
    bases = [Path(__file__).parent.parent, *(Path(sysconfig.get_path(kind)) for kind in ("platlib", "purelib"))]
    places = [Path(named)] if named else [base / _LIBRARY for base in dict.fromkeys(bases)]
    return _first("the interposer", places, LIBRARY_VARIABLE)


def manager(environment: Mapping[str, str]) -> Path:
    """The kernel manager. Raises `NotInstalledError`."""
    named = environment.get(MANAGER_VARIABLE)
    if named:
        return _first("the kernel manager", [Path(named)], MANAGER_VARIABLE)
    # The one that came with this package first: interposer and manager of two versions do not understand each other.
    bases = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    places = [base / _MANAGER for base in dict.fromkeys(bases)]
    on_path = shutil.which(_MANAGER, path=environment.get("PATH"))
    return _first("the kernel manager", [*places, *([Path(on_path)] if on_path else [])], MANAGER_VARIABLE)


def _first(what: str, places: list[Path], variable: str) -> Path:
    for place in places:
        if os.path.isfile(place):  # noqa: PTH113  Path.is_file raises for closed directories
            return place.absolute()
    looked = ", ".join(map(str, places))
    raise NotInstalledError(f"{what} is not at {looked}; see docs/kernels.md ({variable} names another)")


def preload_fault(library: Path, environment: Mapping[str, str]) -> str | None:
    """Why the library cannot be preloaded here, or None.

    A program that does nothing is run with it, with all its symbols bound at start, as dlopen with RTLD_NOW would do:
    what ld.so dislikes (another architecture, a newer glibc, a missing symbol) shows as text or a failure.
    """
    if set(str(library)) & set(": \t\n"):
        return "its path has a colon or white space, which LD_PRELOAD cannot hold"
    tried = {**environment, _PRELOAD: str(library), "LD_BIND_NOW": "1"}
    try:
        done = subprocess.run(
            ["/bin/true"], env=tried, capture_output=True, text=True, errors="replace", timeout=_PRELOAD_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"/bin/true could not be run with it: {error}"
    words = done.stderr.strip()
    if words:
        return words.splitlines()[0]
    return f"/bin/true ends with status {done.returncode} under it" if done.returncode else None


def ld_preload(library: Path, environment: Mapping[str, str]) -> str:
    """The value of LD_PRELOAD with the library. What is there stays, and in front: the user chose it."""
    before = environment.get(_PRELOAD, "").replace(":", " ").split()
    here = os.fspath(library)
    return ":".join(before if here in before else [*before, here])


class ManagerError(Exception):
    """The kernel manager does not start; the message says what was found."""


def answering(environment: Mapping[str, str]) -> Path | None:
    """The socket of the manager that the environment names, if one listens there."""
    named = environment.get(SOCKET_VARIABLE)
    return Path(named) if named and _listens(Path(named)) else None


def start(room: Path, policy: str, environment: Mapping[str, str], as_daemon: Callable[[], None]) -> dict[str, str]:
    """Start a manager in the room unless it is there; returns what its clients need in their environment.

    `policy` is `group` or `quota`; one that is there keeps its own. `as_daemon` is run in the child before the program
    (`SignalRelay.as_daemon`). Raises `ManagerError`, `NotInstalledError`, or OSError for the room's files.
    """
    address = socket_of(room)
    if not _listens(address):
        program = manager(environment)
        with (room / "sexplkmd.log").open("ab") as log:
            try:
                child = subprocess.Popen(
                    [str(program), "--dir", str(address.parent), "--policy", policy, "--foreground"],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the command
                    preexec_fn=as_daemon,
                )
            except OSError as error:
                raise ManagerError(f"{program}: {error.strerror}") from error
        try:
            (room / "policy").write_text(policy)
            (room / "sexplkmd.pid").write_text(f"{child.pid} {born_at(child.pid)}")
        except OSError:  # a full disk: nobody would know which process to end
            child.kill()
            child.wait()
            raise
        _wait_for(child, address, room / "sexplkmd.log")
    return {SOCKET_VARIABLE: str(address)}


def listens(room: Path) -> bool:
    """Whether the room's manager answers."""
    return _listens(socket_of(room))


def policy_of(room: Path) -> str:
    """The policy of the room's manager, which whoever came first has chosen."""
    return (room / "policy").read_text()


def stop(room: Path) -> None:
    """End the room's manager, if it runs. It may be the child of an `sxrun` that is gone."""
    try:
        pid, _, born = (room / "sexplkmd.pid").read_text().partition(" ")
        if not pid.isdecimal():  # its file was opened and not written: the disk was full, or the writer was killed
            return
        descriptor = os.pidfd_open(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return
    try:
        if not born or born_at(int(pid)) != born:
            return
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(descriptor, number)
            if ended.poll(STOP_MS):
                _reap(int(pid))
                return
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def socket_of(room: Path) -> Path:
    """Where the room's manager listens."""
    return room / "km" / "kernel-manager.sock"


def _reap(pid: int) -> None:
    """A child of ours would stay as a zombie where nobody adopts it, as in many containers."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _wait_for(child: subprocess.Popen[bytes], address: Path, log: Path) -> None:
    end_s = time.monotonic() + _START_S
    while not _listens(address):
        status = child.poll()
        if status is not None or time.monotonic() > end_s:
            words = log.read_text(errors="replace").strip().splitlines() or ["no message"]
            late = f"has not opened {address} after {_START_S:.0f} s"
            ended = late if status is None else f"ends with status {status}"
            raise ManagerError(f"the kernel manager {ended}: {words[-1]}")
        time.sleep(_POLL_S)


def _listens(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(address))
        except OSError:
            return False
        return True


def born_at(pid: int) -> str:
    """The start time of a process, field 22 of /proc/PID/stat: a pid alone may be another's by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


LOOK_S = 1.0
MOST_STARTS = 20  # a manager that always dies must not be started for ever


@contextmanager
def kept_alive(
    room: RuntimeDirectory, policy: str, environment: Mapping[str, str], as_daemon: Callable[[], None]
) -> Iterator[None]:
    """Look after the room's manager in a thread, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        starts = 0
        while starts < MOST_STARTS and not ended.wait(LOOK_S):
            if listens(room.path):
                continue
            starts += 1
            try:
                with room.locked():
                    start(room.path, policy, environment, as_daemon)
            except (OSError, NotInstalledError, ManagerError) as error:
                warn("sxrun", f"kernels are not managed for the moment: {error}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
