"""Passes signals on to a child process, without a moment in which one could be lost or end us.

The signals are blocked and taken one by one with sigwait(2), so nothing runs inside a signal handler.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from explsched.errors import warn
from explsched.job_options.table import CHECKPOINT

_FORWARDED = frozenset(
    {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGALRM", "SIGXCPU"}
)
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_TRAPPED_BY_NOBODY = signal.SIGSYS  # but caught by a bash with a trap on EXIT
_SCRIPT = "255"  # the descriptor from which bash reads its script
_LONGEST_SCRIPT = 1 << 20
_SOURCED = re.compile(rb"""(?:^|[\0;&|({]|\b(?:then|do|else))\s*(?:\.|source)\s+["']?([^\s"';&|)\0]+)""", re.MULTILINE)
_POLL_S = 0.5
_THROUGH_SRUN = {signal.SIGUSR1, signal.SIGUSR2}
"""srun passes these on to its tasks. It kills them for SIGTERM, SIGHUP and SIGQUIT, and keeps the others to itself."""

_SAME_TIME_S = 0.005
"""Slurm signals a job's processes one after the other: what the command has had, we have so much later at most."""


class SignalRelay:
    """Holds back the signals meant for a command, starts the command, and passes them on until it ends.

    The checkpoint signal would end a command that has not installed its handler (yet), as signals do by default. It is
    kept until the command listens. Ignoring it in the command instead would keep every shell from trapping it:
    POSIX lets no shell trap what it was started ignoring.
    """

    def __init__(self, checkpoint: signal.Signals) -> None:
        self._checkpoint = checkpoint
        names = _FORWARDED | {checkpoint.name}
        self._watched = {signal.Signals[name] for name in names} | {signal.SIGCHLD}
        self._before: set[int] = set()
        self.was_told_to_end = False
        """Whether a signal that asks for an end has come before the command ended."""

    def __enter__(self) -> SignalRelay:
        """Hold signals back. Threads must be started after this, so that none of them takes a signal."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would cost us the exit status
        self._before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._watched))
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
        """Start the command with the signal mask that we were started with. Raises OSError as Popen does."""
        child = subprocess.Popen(command, stdout=stdout, env=environment, preexec_fn=self._unblock)
        if _ends_at_srun(child.pid, self._checkpoint):
            warn(
                "sxrun",
                f"srun does not pass {self._checkpoint.name} on to its tasks, so they are asked for no checkpoint; "
                f"with {CHECKPOINT.flag} USR1 or USR2 they are",
            )
        return child

    def as_daemon(self) -> None:
        """Ignore the signals meant for the command, in the process of a daemon that serves it until it has ended.

        Slurm signals all processes of a step. A CUDA MPS that ended then would take the command's GPU memory with it
        while that saves a checkpoint. A daemon that blocks a signal and waits for it gets it all the same.
        """
        for number in self._watched - {signal.SIGCHLD}:
            signal.signal(number, signal.SIG_IGN)
        self._unblock()

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """Pass signals on until the child has ended; returns its status as `Popen.wait` does."""
        kept = False
        was_blocked = False
        while (status := child.poll()) is None:
            info = signal.sigtimedwait(self._watched, _POLL_S) if kept else signal.sigwaitinfo(self._watched)
            if info is not None and info.si_signo == self._checkpoint:
                kept, was_blocked = True, False
            elif info is not None and info.si_signo != signal.SIGCHLD:
                self.was_told_to_end |= info.si_signo in _ENDING
                if not _from_terminal(info):
                    _send(child, signal.Signals(info.si_signo))
            if kept:
                caught, blocked = listens(child.pid, self._checkpoint)
                # Blocked means that another thread waits for it by sigwait, as in srun. (A thread inside sigwait does
                # not show it.) Twice in a row, since fork(2) blocks signals for a moment.
                if caught or (blocked and was_blocked):
                    _send(child, self._checkpoint)
                    kept = False
                elif info is not None and info.si_signo == self._checkpoint and not blocked:
                    warn("sxrun", f"{self._checkpoint.name} is kept until the command handles it")
                was_blocked = blocked
        self.was_told_to_end |= signal.sigtimedwait(_ENDING, _SAME_TIME_S) is not None
        return status


def _send(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        child.send_signal(number)
    except PermissionError:  # it has become another user's, as by sudo
        warn("sxrun", f"{number.name} cannot be passed on: the command is another user's")


def _never(_number: int, _frame: FrameType | None) -> None:
    """The signals are blocked: sigwait takes them before a handler could."""


def _from_terminal(info: signal.struct_siginfo) -> bool:
    """Whether the kernel sent it, as for Ctrl-C: then the command, in the same process group, has it already.

    When a terminal goes, it tells the leader of the session alone, which may be us (`srun --pty`, `tmux new sxrun`).
    """
    if info.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid():
        return False
    return info.si_code > 0 and info.si_signo in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def listens(pid: int, number: signal.Signals) -> tuple[bool, bool]:
    """Whether a process catches a signal, and whether it blocks it. Without /proc: as if it were caught.

    Neither counts where the process is an srun that would not pass it on.

    A bash with `trap ... EXIT` catches all that would end it, to run that trap, and dies of them all the same. What it
    traps besides looks no different from outside, so its script must name the signal.
    """
    try:
        if _ends_at_srun(pid, number):
            return False, False
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        caught, bit = int(fields["SigCgt"], 16), _bit(number)
        is_caught = bool(caught & bit) and (not caught & _bit(_TRAPPED_BY_NOBODY) or _names(pid, number))
        return is_caught, bool(int(fields["SigBlk"], 16) & bit)
    except (OSError, KeyError, ValueError) as error:
        warn("sxrun", f"cannot see whether the command handles {number.name}: {error}")
        return True, False


def _ends_at_srun(pid: int, number: signal.Signals) -> bool:
    """Whether a process is an srun, which would not pass this signal on to its tasks."""
    return number not in _THROUGH_SRUN and _program(pid) == "srun"


def _program(pid: int) -> str:
    """The name of the file that a process runs; empty where that cannot be seen, as of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _bit(number: signal.Signals) -> int:
    return 1 << (number - 1)


def _names(pid: int, number: signal.Signals) -> bool:
    """Whether what a bash runs names the signal; true for other programs. Raises OSError."""
    of_process = Path(f"/proc/{pid}")
    if not _program(pid).startswith("bash"):
        return True
    text = (of_process / "cmdline").read_bytes() + _script(of_process / "fd" / _SCRIPT)
    place = (of_process / "cwd").readlink()
    sourced = {os.path.expanduser(os.path.expandvars(os.fsdecode(name))) for name in _SOURCED.findall(text)}  # noqa: PTH111
    text += b"\n".join(_script(place / name) for name in sourced)
    name = number.name.removeprefix("SIG")
    named = rf"(?i)\b(SIG)?{name}\b|{CHECKPOINT.variable}|\btrap\b.*\b{int(number)}\b"
    return re.search(named.encode(), text) is not None


def _script(path: Path) -> bytes:
    """As much of a script as is worth a look; empty if it is no file, since what is read from a pipe would be lost."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(_LONGEST_SCRIPT)
    return b""
