"""Which of a command's processes handle a signal, as /proc tells.

Launchers such as torchrun and `accelerate launch` neither handle a checkpoint signal nor pass it on, and may start
workers in sessions of their own: who handles it then is looked for among all that the command has started.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from explsched.errors import warn
from explsched.job_options.table import CHECKPOINT

_TRAPPED_BY_NOBODY = signal.SIGSYS  # but caught by a bash with a trap on EXIT, and by Go's runtime, which catches all
_SCRIPT = "255"  # the descriptor from which bash reads its script
_LONGEST_SCRIPT = 1 << 20
_SOURCED = re.compile(rb"""(?:^|[\0;&|({]|\b(?:then|do|else))\s*(?:\.|source)\s+["']?([^\s"';&|)\0]+)""", re.MULTILINE)
_THROUGH_SRUN = {signal.SIGUSR1, signal.SIGUSR2}
"""srun passes these on to its tasks. It kills them for SIGTERM, SIGHUP and SIGQUIT, and keeps the others to itself."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """Processes that handle a signal, none of them below another: what one has started is its own to tell.

    Attributes:
        catching: those with a handler.
        blocking: those that block it, as they wait for it by sigwait, like srun; or as fork(2) does for a moment.

    """

    catching: frozenset[int]
    blocking: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Dispositions:
    """What a process does with a signal. `of_all`: its program has not chosen to catch it, but catches all signals."""

    catches: bool
    blocks: bool
    of_all: bool


def handlers(command: int, number: signal.Signals) -> Handlers:
    """The command if it handles the signal, else the topmost that do among those that it has started.

    Without /proc: as if the command caught it. An srun that would not pass it on does not count.
    """
    try:
        waiting = [(command, _dispositions(command, number))]
    except (OSError, KeyError, ValueError) as error:
        warn("sxrun", f"cannot see whether the command handles {number.name}: {error}")
        return Handlers(frozenset({command}), frozenset())
    catching, blocking = set(), set()
    children: Mapping[int, Sequence[int]] = {}
    while waiting:
        pid, does = waiting.pop()
        if does.catches and (pid == command or not does.of_all):
            catching.add(pid)
        elif does.blocks:
            blocking.add(pid)
        else:
            children = children or _children()
            for child in children.get(pid, ()):
                with suppress(OSError, KeyError, ValueError):  # it has ended meanwhile
                    waiting.append((child, _dispositions(child, number)))
    return Handlers(frozenset(catching), frozenset(blocking))


def ends_at_srun(pid: int, number: signal.Signals) -> bool:
    """Whether a process is an srun, which would not pass this signal on to its tasks."""
    return number not in _THROUGH_SRUN and _program(pid) == "srun"


def _children() -> dict[int, list[int]]:
    """The processes of this machine that can be seen, by their parents'."""
    found: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            after_name = (place / "stat").read_bytes().rpartition(b")")[2]
            found.setdefault(int(after_name.split(None, 2)[1]), []).append(int(place.name))
    return found


def _dispositions(pid: int, number: signal.Signals) -> _Dispositions:
    """Raises OSError, KeyError or ValueError where /proc does not tell.

    A bash with `trap ... EXIT` catches all that would end it, to run that trap, and dies of them all the same. What it
    traps besides looks no different from outside, so its script must name the signal.
    """
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    caught, blocked, bit = int(fields["SigCgt"], 16), int(fields["SigBlk"], 16), _bit(number)
    if ends_at_srun(pid, number):
        return _Dispositions(catches=False, blocks=False, of_all=False)
    catches, of_all = bool(caught & bit), bool(caught & _bit(_TRAPPED_BY_NOBODY))
    if catches and of_all and _program(pid).startswith("bash"):
        catches, of_all = _names(pid, number), False
    return _Dispositions(catches, bool(blocked & bit), of_all)


def _program(pid: int) -> str:
    """The name of the file that a process runs; empty where that cannot be seen, as of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _bit(number: signal.Signals) -> int:
    return 1 << (number - 1)


def _names(pid: int, number: signal.Signals) -> bool:
    """Whether what a bash runs names the signal. Raises OSError."""
    of_process = Path(f"/proc/{pid}")
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
