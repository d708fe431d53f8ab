"""What a process would do with a signal, as /proc tells. Standard library only: trainings import it."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from explsched.job_options.table import CHECKPOINT

_ENDS_NOTHING = {signal.SIGURG}
"""Of the signals that ask for a checkpoint, those that are without effect where nobody catches them."""

_TRAPPED_BY_NOBODY = signal.SIGSYS  # but caught by a bash with a trap on EXIT
_SCRIPT = "255"  # the descriptor from which bash reads its script
_LONGEST_SCRIPT = 1 << 20
_COMMENT = re.compile(rb"(?m)^\s*#.*$")  # as #SXBATCH --checkpoint=USR1
_SOURCED = re.compile(rb"""(?:^|[\0;&|({]|\b(?:then|do|else))\s*(?:\.|source)\s+["']?([^\s"';&|)\0]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Handling:
    """What a process does with a signal. It blocks one to wait for it by sigwait, or as fork(2) does for a moment."""

    catches: bool
    blocks: bool
    ignores: bool = False


def signal_number(name: str) -> signal.Signals:
    """The number of a signal, named with or without SIG. Raises ValueError for one that a job cannot catch."""
    bare = name.upper().removeprefix("SIG")
    number = signal.Signals.__members__.get(f"SIG{bare}")
    if number is None or bare in ("KILL", "STOP"):
        raise ValueError(f"checkpoint signal {name!r}: not a signal that a job can catch, such as USR1")
    return number


def would_end(pid: int, number: signal.Signals) -> bool:
    """Whether a process would end at a signal. Raises OSError, KeyError or ValueError where /proc does not tell."""
    if number in _ENDS_NOTHING:
        return False
    found = disposition(pid, number)
    return not (found.catches or found.blocks or found.ignores)


def disposition(pid: int, number: signal.Signals) -> Handling:
    """Raises OSError, KeyError or ValueError where /proc does not tell.

    A bash with `trap ... EXIT` catches all that would end it, to run that trap, and dies of them all the same. What it
    traps besides looks no different from outside, so its script must name the signal.
    """
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    caught, blocked, ignored = (int(fields[name], 16) for name in ("SigCgt", "SigBlk", "SigIgn"))
    bit = _bit(number)
    catches = bool(caught & bit)
    if catches and caught & _bit(_TRAPPED_BY_NOBODY) and program(pid).startswith("bash"):
        catches = _names(pid, number)
    return Handling(catches, bool(blocked & bit), bool(ignored & bit))


def program(pid: int) -> str:
    """The name of the file that a process runs; empty where that cannot be seen, as of one that has just ended.

    Of a program that is set-user-id, as Apptainer's starter can be, the first 15 characters.
    """
    of_process = Path(f"/proc/{pid}")
    with suppress(OSError):
        try:
            return (of_process / "exe").readlink().name
        except PermissionError:
            return (of_process / "comm").read_text(errors="replace").rstrip("\n")
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


def children() -> dict[int, list[int]]:
    """The processes of this machine that can be seen, by their parents'."""
    found: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            after_name = (place / "stat").read_bytes().rpartition(b")")[2]
            found.setdefault(int(after_name.split(None, 2)[1]), []).append(int(place.name))
    return found
