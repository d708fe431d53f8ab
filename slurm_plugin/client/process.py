"""Calls that may hang, bounded in time: Slurm's commands, and calls into a network's file system.

Commands run in a known environment, and errors say what went wrong.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar, cast

from msgspec import Struct

from explsched.errors import SlurmError, SlurmUnreachableError

_Result = TypeVar("_Result")

# Defaults that users and sites set for their own terminals; they would change what we parse.
_FOREIGN = ("SQUEUE_", "SINFO_", "SPRIO_", "SCONTROL_", "SDIAG_", "SCANCEL_", "SLURM_BITSTR_LEN", "SLURM_CLUSTERS")
_OTHER_SUBMISSIONS = ("SBATCH_CLUSTERS", "SBATCH_ARRAY_INX", "SBATCH_WAIT")
"""Users' defaults with which sbatch submits elsewhere, several jobs, or does not return while one runs."""

_OF_THE_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET")
"""Where slurmctld is, and who asks: the only variables of Slurm's that are not about the job we run in."""

_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Unable to establish controller machine",
    "Transport endpoint",
    "in standby mode",
)
_AT_ONCE = 65_536  # bytes
_NO_CONFIGURATION = "Could not establish a configuration source"


class CommandOutput(Struct, frozen=True):
    """What a command printed."""

    returncode: int
    out: str
    err: str


class TimedOutError(SlurmUnreachableError):
    """A command that was killed when its time was over; `out` and `err` are what it had printed."""

    def __init__(self, message: str, out: bytes | None, err: bytes | None) -> None:
        super().__init__(message)
        self.out, self.err = ((text or b"").decode(errors="replace") for text in (out, err))


def environment(added: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the users' output settings; times as seconds, text as UTF-8."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    return {**kept, **added, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}


def submission(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for sbatch: without what tells of the job we may run in ourselves, for jobs inherit it.

    Slurm sets what belongs to the new job; anything left over, such as SLURM_MEM_PER_NODE, would contradict it. The
    locale that makes our commands' output readable is not the job's either. What it submits is one job, of this
    cluster.
    """
    locale = {"LC_ALL": os.environ["LC_ALL"]} if "LC_ALL" in os.environ else {}
    left_out = ("LC_ALL", *_OTHER_SUBMISSIONS)
    ours = {key: value for key, value in environment.items() if key in _OF_THE_CLUSTER or not key.startswith("SLURM_")}
    return {**{key: value for key, value in ours.items() if key not in left_out}, **locale}


def run(
    argv: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str],
    stdin: str | None = None,
    pass_fds: Sequence[int] = (),
) -> CommandOutput:
    """Run a command, which inherits the descriptors `pass_fds`.

    Raises `SlurmError` if it cannot be started, `SlurmUnreachableError` if nobody answers it.
    """
    with _errors_of(argv, timeout_s, environment):
        done = subprocess.run(
            argv,
            input=None if stdin is None else stdin.encode(),
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            env=environment,
            check=False,
            pass_fds=pass_fds,
        )
    return _output(argv, done.returncode, done.stdout, done.stderr)


def run_until(words: str, argv: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> CommandOutput:
    """Run a command as `run` does, but end it once its errors hold these words. Only its errors are read."""
    until_s = time.monotonic() + timeout_s
    nothing = subprocess.DEVNULL
    with (
        _errors_of(argv, timeout_s, environment),
        subprocess.Popen(
            argv, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE, env=environment, bufsize=0
        ) as child,
    ):
        errors, told = cast("IO[bytes]", child.stderr), b""
        readable = select.poll()
        readable.register(errors)
        try:
            while words.encode() not in told:
                if not readable.poll(max(0.0, until_s - time.monotonic()) * 1000.0):
                    raise subprocess.TimeoutExpired(argv, timeout_s)
                if not (more := errors.read(_AT_ONCE)):
                    child.wait(max(0.0, until_s - time.monotonic()))
                    break
                told += more
        finally:
            child.kill()
    return _output(argv, child.returncode, b"", told)


@contextmanager
def _errors_of(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> Iterator[None]:
    """Around the run of a command: its failures to run as our errors."""
    if named := environment.get("SLURM_CONF"):
        try:
            Path(named).stat()
        except OSError as error:  # Slurm's commands would look for it for a minute
            raise SlurmError(f"{argv[0]}: SLURM_CONF names {named}: {error.strerror}") from error
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:  # the latter if PATH has a directory closed to this user
        raise SlurmError(f"{argv[0]} is not installed or not on PATH (Debian package slurm-client)") from error
    except subprocess.TimeoutExpired as error:
        what = f"{argv[0]}: no answer from slurmctld within {timeout_s:g} s"
        raise TimedOutError(what, error.stdout, error.stderr) from error


def _output(argv: Sequence[str], returncode: int, out: bytes, err: bytes) -> CommandOutput:
    answer = CommandOutput(returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    if _NO_CONFIGURATION in answer.err:
        raise SlurmError(f"{argv[0]} finds no Slurm configuration: no /etc/slurm/slurm.conf, and SLURM_CONF names none")
    if any(words in answer.err for words in _UNREACHABLE):
        raise SlurmUnreachableError(f"{argv[0]}: {answer.err.strip()}")
    return answer


def read(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> str:
    """Output of a command that must succeed. Raises `SlurmError` with its words otherwise."""
    answer = run(argv, timeout_s, environment)
    if answer.returncode != 0:
        raise SlurmError(f"{argv[0]} failed ({answer.returncode}): {(answer.err or answer.out).strip()}")
    return answer.out


def beside(threads: ThreadPoolExecutor, call: Callable[[], _Result]) -> Future[_Result]:
    """Begin a call that may take long, such as a command, in a thread. Raises `SlurmError` if there is none."""
    try:
        return threads.submit(call)
    except RuntimeError as error:
        raise SlurmError(f"no thread to ask Slurm with: {error}; memory or processes are used up") from error


class BoundedCall:
    """One call at a time, in a thread that ends with the process. The kernel lets nobody break off such a call."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._latest: _Attempt | None = None

    @property
    def hangs(self) -> bool:
        """Whether a call that was given up has not come back."""
        return self._latest is not None and self._latest.is_under_way

    def run(self, call: Callable[[], None]) -> bool:
        """Whether the call has come back in time. While an earlier one hangs nothing is called.

        A call that has not begun by then is never made: it would run beside a later one.
        Raises what the call raises, and `OSError` if there is no memory for a thread; what a call raises that has been
        given up is lost.
        """
        if self.hangs:
            return False
        self._latest = attempt = _Attempt(call)
        try:
            # `Thread.start` waits without end for a thread that finds no memory to begin.
            _thread.start_new_thread(attempt.run, ())
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"{error}: memory or processes are used up") from error
        if not attempt.has_ended.wait(self.patience_s):
            attempt.give_up()
            return False
        if attempt.error is not None:
            raise attempt.error
        return True


class _Attempt:
    """One call, and what became of it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._first = threading.Lock()  # who takes it decides whether the call is made; nobody gives it back
        self._has_begun = False
        self.has_ended = threading.Event()
        self.error: BaseException | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the call has begun and not ended."""
        return self._has_begun and not self.has_ended.is_set()

    def give_up(self) -> None:
        """Do not make the call if it has not begun."""
        _ = self._first.acquire(blocking=False)

    def run(self) -> None:
        """Call, in the thread that nobody waits for without end."""
        if not self._first.acquire(blocking=False):
            return
        self._has_begun = True
        try:
            self._call()
        except BaseException as error:  # raised again where it is waited for
            self.error = error
        finally:
            self.has_ended.set()
