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
from dataclasses import dataclass
from pathlib import Path

from explsched.errors import warn
from explsched.job_options.table import CHECKPOINT
from explsched.launchers import launcher

_TOLD_BELOW = re.compile(r"python|pypy|(ba|da|a|mk|z)?sh\b|ksh\d*\b|busybox\b")
"""Programs that catch a signal because a user has written so. Others, as rsync, catch it to end, or for their own."""

_FOR_THEIR_OWN = frozenset({"gmake", "make", "script", "uv", "dumb-init", "tini", "starter", "starter-suid"})
"""Programs that catch USR1 to turn messages on, block all signals, or pass them on to what they run before that handles
them, as Apptainer's starter: who is to be asked is what they run."""
_FOR_ITS_OWN = "xvfb-run"
"""A shell script that is told by USR1 that its X server is ready."""

_ENDS_NOTHING = {signal.SIGURG}
"""Of the signals that ask for a checkpoint, those that are without effect where nobody catches them."""

_TRAPPED_BY_NOBODY = signal.SIGSYS  # but caught by a bash with a trap on EXIT
_SCRIPT = "255"  # the descriptor from which bash reads its script
_LONGEST_SCRIPT = 1 << 20
_COMMENT = re.compile(rb"(?m)^\s*#.*$")  # as #SXBATCH --checkpoint=USR1
_SOURCED = re.compile(rb"""(?:^|[\0;&|({]|\b(?:then|do|else))\s*(?:\.|source)\s+["']?([^\s"';&|)\0]+)""", re.MULTILINE)
_THROUGH_SRUN = {signal.SIGUSR1, signal.SIGUSR2}
"""srun passes these on to its tasks. It kills them for SIGTERM, SIGHUP and SIGQUIT, and keeps the others to itself."""

_ENDS_WORKERS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""torchrun catches these, others some of them, and ends its workers: those that still save after 30 s by SIGKILL."""


Lineage = tuple[int, ...]
"""A process, preceded by those above it, from the command on."""


@dataclass(frozen=True, slots=True)
class Handling:
    """What a process does with a signal. It blocks one to wait for it by sigwait, or as fork(2) does for a moment."""

    catches: bool
    blocks: bool
    ignores: bool = False


def handling(command: int, number: signal.Signals) -> Handling:
    """What a command does with a signal. Without /proc: as if it caught it. An srun handles what it passes on."""
    try:
        found = _handling(command, number)
        is_ours = not ends_at_srun(command, number) and not _is_for_its_own(command)
    except (OSError, KeyError, ValueError) as error:
        warn("sxrun", f"cannot see whether the command handles {number.name}: {error}")
        return Handling(catches=True, blocks=False)
    return found if is_ours else Handling(catches=False, blocks=False)


def would_end(pid: int, number: signal.Signals) -> bool:
    """Whether a process would end at a signal. Raises OSError, KeyError or ValueError where /proc does not tell."""
    if number in _ENDS_NOTHING:
        return False
    found = _handling(pid, number)
    return not (found.catches or found.blocks or found.ignores)


def handlers_below(command: int, number: signal.Signals, told: Collection[Lineage]) -> list[Lineage]:
    """The topmost Python programs and shells below a command that catch the signal, none above or below one of `told`.

    What such a process has started is its own to tell.
    """
    had, above = {pid for *_, pid in told}, {pid for *pids, _ in told for pid in pids}
    found: list[Lineage] = []
    waiting: list[Lineage] = [(command,)]
    below = children()
    while waiting:
        lineage = waiting.pop()
        for pid in below.get(lineage[-1], ()):
            if pid in had:
                continue
            is_handler = pid not in above and _is_handler(pid, number)
            (found if is_handler else waiting).append((*lineage, pid))
    return found


def ends_at_srun(pid: int, number: signal.Signals) -> bool:
    """Whether a process is an srun, which would not pass this signal on to its tasks."""
    return number not in _THROUGH_SRUN and _program(pid) == "srun"


def ends_at_launcher(command: Sequence[str], number: signal.Signals) -> str | None:
    """The launcher that a command's words run and that would take this signal for its workers' end; None without one.

    One that a shell script starts is not seen.
    """
    return launcher(command) if number in _ENDS_WORKERS else None


def children() -> dict[int, list[int]]:
    """The processes of this machine that can be seen, by their parents'."""
    found: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            after_name = (place / "stat").read_bytes().rpartition(b")")[2]
            found.setdefault(int(after_name.split(None, 2)[1]), []).append(int(place.name))
    return found


def _is_handler(pid: int, number: signal.Signals) -> bool:
    """Whether a process below the command is to be told. One that has ended runs no program any more."""
    with suppress(OSError, KeyError, ValueError):  # it has ended meanwhile
        is_told = _TOLD_BELOW.match(_program(pid)) is not None and _handling(pid, number).catches
        return is_told and not _is_for_its_own(pid)
    return False


def _is_for_its_own(pid: int) -> bool:
    """Whether a process takes signals whatever the user has written."""
    if not _TOLD_BELOW.match(program := _program(pid)):
        return program in _FOR_THEIR_OWN
    _shell, script, *_ = (*command_line(pid), b"", b"")
    return Path(os.fsdecode(script)).name == _FOR_ITS_OWN


def _handling(pid: int, number: signal.Signals) -> Handling:
    """Raises OSError, KeyError or ValueError where /proc does not tell.

    A bash with `trap ... EXIT` catches all that would end it, to run that trap, and dies of them all the same. What it
    traps besides looks no different from outside, so its script must name the signal.
    """
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    caught, blocked, ignored = (int(fields[name], 16) for name in ("SigCgt", "SigBlk", "SigIgn"))
    bit = _bit(number)
    catches = bool(caught & bit)
    if catches and caught & _bit(_TRAPPED_BY_NOBODY) and _program(pid).startswith("bash"):
        catches = _names(pid, number)
    return Handling(catches, bool(blocked & bit), bool(ignored & bit))


def _program(pid: int) -> str:
    """The name of the file that a process runs; empty where that cannot be seen, as of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def command_line(pid: int) -> list[bytes]:
    """The words of a process; none where they cannot be seen."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _bit(number: signal.Signals) -> int:
    return 1 << (number - 1)


def _names(pid: int, number: signal.Signals) -> bool:
    """Whether what a bash runs names the signal. Raises OSError."""
    of_process = Path(f"/proc/{pid}")
    text = _COMMENT.sub(b"", (of_process / "cmdline").read_bytes() + _script(of_process / "fd" / _SCRIPT))
    place = (of_process / "cwd").readlink()
    sourced = {os.path.expanduser(os.path.expandvars(os.fsdecode(name))) for name in _SOURCED.findall(text)}  # noqa: PTH111
    text += b"\n".join(_script(place / name) for name in sourced)
    name = number.name.removeprefix("SIG")
    as_number = rf"\btrap\b.*[\s'\"]{int(number)}(?![^\s\0'\";&|)])"  # and not in a file's name
    named = rf"(?i)\b(SIG)?{name}\b|{CHECKPOINT.variable}|{as_number}"
    return re.search(named.encode(), text) is not None


def _script(path: Path) -> bytes:
    """As much of a script as is worth a look; empty if it is no file, since what is read from a pipe would be lost."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(_LONGEST_SCRIPT)
    return b""
