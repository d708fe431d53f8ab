"""Passes signals on to a child process, without a moment in which one could be lost or end us.

The signals are blocked and taken one by one with sigwait(2), so nothing runs inside a signal handler.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import IO

from explsched.errors import warn
from explsched.job_options.table import CHECKPOINT
from wrappers.signal_handlers import Lineage, ends_at_launcher, ends_at_srun, handlers_below, handling

_FORWARDED = frozenset(
    {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGALRM", "SIGXCPU"}
)
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_POLL_S = 0.5
_APART_S = 30.0
"""Workers of one launcher begin to handle the checkpoint signal within this time."""

_LOOKING = 0.05
"""The share of the time in which those below a command are looked for, at most: that reads all of /proc."""
_LONGEST_S = 5.0
"""Between two such looks, one of which may have been held up."""

_SAME_TIME_S = 0.005
"""Slurm signals a job's processes one after the other: what the command has had, we have so much later at most."""


class SignalRelay:
    """Holds back the signals meant for a command, starts the command, and passes them on until it ends.

    The checkpoint signal would end a command that has not installed its handler (yet), as signals do by default. It is
    kept until the command or what that has started listens. Ignoring it in the command instead would keep every shell
    from trapping it: POSIX lets no shell trap what it was started ignoring.
    """

    def __init__(self, checkpoint: signal.Signals, before: Iterable[int] | None = None) -> None:
        """`before` is the mask of signals that the command is to start with, by default that of now."""
        self._checkpoint = checkpoint
        names = _FORWARDED | {checkpoint.name}
        self._watched = {signal.Signals[name] for name in names} | {signal.SIGCHLD}
        self._before = None if before is None else set(before)
        self.was_told_to_end = False
        """Whether a signal that asks for an end has come before the command ended."""

    def __enter__(self) -> SignalRelay:
        """Hold signals back. Threads must be started after this, so that none of them takes a signal."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would cost us the exit status
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)
        self._before = mask if self._before is None else self._before
        for number in self._watched - {signal.SIGCHLD}:
            # Never called, but it shows an sxrun around us that we take the signal. What was ignored, as SIGHUP under
            # nohup, stays so: the command inherits it.
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _never)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Signals stay held back to our own end: they were for the command, and its status must become ours.

        One that came between the command's end and ours would make a failure of a job that has done its work.
        """

    def start(
        self,
        command: Sequence[str],
        stdout: int | IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start the command with the signal mask and the descriptors that we were started with.

        MPI finds its launcher by a descriptor (PMI_FD), and bash names its `<(...)` as /dev/fd/63. What is open of our
        own closes at exec, as Python opens it. Raises OSError as Popen does.
        """
        child = subprocess.Popen(command, stdout=stdout, env=environment, preexec_fn=self._unblock, close_fds=False)
        if ends_at_srun(child.pid, self._checkpoint):
            warn(
                "sxrun",
                f"srun does not pass {self._checkpoint.name} on to its tasks, so they are asked for no checkpoint; "
                f"with {CHECKPOINT.flag} USR1 or USR2 they are",
            )
        elif launcher := ends_at_launcher(command, self._checkpoint):
            warn(
                "sxrun",
                f"{launcher} may end its workers at {self._checkpoint.name} while they save, and the job fails; "
                f"with {CHECKPOINT.flag} USR1 or USR2 they save and go on",
            )
        return child

    def as_daemon(self) -> None:
        """Ignore the signals meant for the command, in the process of a daemon that serves it until it has ended.

        Slurm may signal all processes of a step. A CUDA MPS that ended then would take the command's GPU memory with it
        while that saves a checkpoint. A daemon that blocks a signal and waits for it gets it all the same.
        """
        for number in self._watched - {signal.SIGCHLD}:
            signal.signal(number, signal.SIG_IGN)
        self._unblock()

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before or ())

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """Pass signals on until the child has ended; returns its status as `Popen.wait` does."""
        request: Request | None = None
        while (status := child.poll()) is None:
            info = signal.sigtimedwait(self._watched, _POLL_S) if request else signal.sigwaitinfo(self._watched)
            if info is not None and info.si_signo == self._checkpoint:
                request = Request(child.pid, self._checkpoint)
            elif info is not None and info.si_signo != signal.SIGCHLD:
                self.was_told_to_end |= info.si_signo in _ENDING
                if not _from_terminal(info):
                    _send(child.pid, signal.Signals(info.si_signo))
            if request is not None and request.pass_on():
                request = None
        self.was_told_to_end |= signal.sigtimedwait(_ENDING, _SAME_TIME_S) is not None
        return status


def _send(pid: int, number: signal.Signals) -> bool:
    """To the command or a process that it has started, which may have ended meanwhile; whether it has it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # it has become another user's, as by sudo
        warn("sxrun", f"{number.name} cannot be passed on: process {pid} is another user's")
        return False
    return True


class Request:
    """The checkpoint signal on its way to the command.

    It is kept until the command handles it. Meanwhile those below that do are told, each once; from the first on for
    30 s, in which the command is not: a script would tell them again. Afterwards the command alone is waited for.
    """

    def __init__(self, command: int, number: signal.Signals, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._command, self._number, self._clock_s = command, number, clock_s
        self._told: set[Lineage] = set()
        self._did_block = False
        self._told_s = math.inf
        self._next_look_s = -math.inf

    def pass_on(self) -> bool:
        """Send it to those that handle it by now; whether the command was among them."""
        now_s = self._clock_s()
        since_s = now_s - self._told_s
        if since_s >= _APART_S and self._next_look_s < math.inf:
            self._tell_below()  # to whom it was not yet
            self._next_look_s = math.inf
        if not 0 <= since_s < _APART_S:
            command = handling(self._command, self._number)
            # Blocked means that another thread waits for it by sigwait, as in srun. (A thread inside sigwait does not
            # show it.) Twice in a row, since fork(2) blocks signals for a moment.
            if command.catches or (command.blocks and self._did_block):
                _send(self._command, self._number)
                return True
            self._did_block = command.blocks
        if now_s >= self._next_look_s and not self._did_block:
            self._tell_below()
        return False

    def _tell_below(self) -> None:
        began_s = self._clock_s()
        new = handlers_below(self._command, self._number, self._told)
        ended_s = self._clock_s()
        if not new and self._next_look_s == -math.inf:
            warn("sxrun", f"{self._number.name} is kept until the command handles it")
        self._next_look_s = ended_s + min((ended_s - began_s) / _LOOKING, _LONGEST_S)
        self._told.update(new)
        sent = [_send(pid, self._number) for *_, pid in new]
        if any(sent):
            self._told_s = min(self._told_s, ended_s)


def _never(_number: int, _frame: FrameType | None) -> None:
    """The signals are blocked: sigwait takes them before a handler could."""


def _from_terminal(info: signal.struct_siginfo) -> bool:
    """Whether the kernel sent it, as for Ctrl-C: then the command, in the same process group, has it already.

    When a terminal goes, it tells the leader of the session alone, which may be us (`srun --pty`, `tmux new sxrun`).
    """
    if info.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid():
        return False
    return info.si_code > 0 and info.si_signo in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
