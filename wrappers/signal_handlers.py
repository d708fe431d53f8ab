"""Who handles a signal, as /proc tells: a command, or processes that it has started.

Launchers such as torchrun and `accelerate launch` neither handle a checkpoint signal nor pass it on, and may start
workers in sessions of their own: who handles it then is looked for among all that the command has started.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from explsched.errors import warn
from explsched.launchers import launcher
from explsched.process_signals import Handling, children, command_line, disposition, program

_TOLD_BELOW = re.compile(r"python|pypy|(ba|da|a|mk|z)?sh\b|ksh\d*\b|busybox\b")
"""Programs that catch a signal because a user has written so. Others, as rsync, catch it to end, or for their own."""

_PASSING_ON = frozenset({"uv", "dumb-init", "tini", "starter", "starter-suid"})
"""Programs that pass signals on to what they run, also before that handles them: it is asked in their place, as if it
were the command. The starter is Apptainer's."""

_SERVING_FILES = frozenset({"squashfuse", "squashfuse_ll", "fuse-overlayfs", "fuse2fs", "gocryptfs"})
"""Programs that the starter runs besides, for a container's files: they catch TERM, INT and HUP to end."""

_FOR_THEIR_OWN = frozenset({"gmake", "make", "script"}) | _PASSING_ON | _SERVING_FILES
"""Programs that are not asked. Some catch USR1 to turn messages on, or block all signals."""

_FOR_ITS_OWN = "xvfb-run"
"""A shell script that is told by USR1 that its X server is ready."""

_THROUGH_SRUN = {signal.SIGUSR1, signal.SIGUSR2}
"""srun passes these on to its tasks. It kills them for SIGTERM, SIGHUP and SIGQUIT, and keeps the others to itself."""

_ENDS_WORKERS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""torchrun catches these, others some of them, and ends its workers: those that still save after 30 s by SIGKILL."""


Lineage = tuple[int, ...]
"""A process, preceded by those above it, from the command on."""


def handling(command: int, number: signal.Signals) -> Handling:
    """What a command does with a signal. Without /proc: as if it caught it. An srun handles what it passes on."""
    try:
        return _handling(command, number)
    except (OSError, KeyError, ValueError) as error:
        warn("sxrun", f"cannot see whether the command handles {number.name}: {error}")
        return Handling(catches=True, blocks=False)


def handlers_below(command: int, number: signal.Signals, told: Collection[Lineage]) -> list[Lineage]:
    """The topmost processes below a command that handle the signal, none above or below one of `told`.

    These are Python programs and shells, and what a program runs that passes signals on. What they have started is
    theirs to tell.
    """
    had, above = {pid for *_, pid in told}, {pid for *pids, _ in told for pid in pids}
    found: list[Lineage] = []
    waiting: list[Lineage] = [(command,)]
    below = children()
    while waiting:
        lineage = waiting.pop()
        is_any_asked = program(lineage[-1]) in _PASSING_ON
        for pid in below.get(lineage[-1], ()):
            if pid in had:
                continue
            is_handler = pid not in above and _is_handler(pid, number, is_any_asked)
            (found if is_handler else waiting).append((*lineage, pid))
    return found


def ends_at_srun(pid: int, number: signal.Signals) -> bool:
    """Whether a process is an srun, which would not pass this signal on to its tasks."""
    return number not in _THROUGH_SRUN and program(pid) == "srun"


def ends_at_launcher(command: Sequence[str], number: signal.Signals) -> str | None:
    """The launcher that a command's words run and that would take this signal for its workers' end; None without one.

    One that a shell script starts is not seen.
    """
    return launcher(command) if number in _ENDS_WORKERS else None


def _handling(pid: int, number: signal.Signals) -> Handling:
    """What a process does with a signal for those that have asked for it. Raises as `disposition` does."""
    found = disposition(pid, number)
    is_ours = not ends_at_srun(pid, number) and not _is_for_its_own(pid)
    return found if is_ours else Handling(catches=False, blocks=False)


def _is_handler(pid: int, number: signal.Signals, is_any_asked: bool) -> bool:  # noqa: FBT001
    """Whether a process below the command is to be told: any program, or only one that a user has told to catch it."""
    with suppress(OSError, KeyError, ValueError):  # it has ended meanwhile
        return (is_any_asked or _TOLD_BELOW.match(program(pid)) is not None) and _handling(pid, number).catches
    return False


def _is_for_its_own(pid: int) -> bool:
    """Whether a process takes signals whatever the user has written."""
    if not _TOLD_BELOW.match(name := program(pid)):
        return name in _FOR_THEIR_OWN
    _shell, script, *_ = (*command_line(pid), b"", b"")
    return Path(os.fsdecode(script)).name == _FOR_ITS_OWN
