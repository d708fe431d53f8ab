"""Launchers: programs that start a training in several processes, such as torchrun; where a command's words name one.

Which of a launcher's options take a value is not known, so a word behind an option may be one: in doubt it is, and
names nothing. Standard library only: trainings import it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LAUNCHERS = frozenset(
    {
        "accelerate",
        "accelerate.commands.launch",
        "deepspeed",
        "horovodrun",
        "mpiexec",
        "mpirun",
        "srun",
        "torch.distributed.launch",
        "torch.distributed.run",
        "torchrun",
    }
)
"""Programs, and modules after `-m`."""

_BEFORE = re.compile(
    "apptainer|chrt|conda|docker|enroot|env|exec|ionice|mamba|nice|nohup|numactl|podman|poetry|setsid|singularity|"
    "stdbuf|sxrun|taskset|time|timeout|uv|xvfb-run"
)
"""Programs that run the command among their own words."""

_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_SCRIPT = re.compile(r"\S+\.py")
_MODULE = ("-m", "--module")
_OPTION = re.compile(r"--[^=]+|-(?![A-Za-z](\d|L$))[^=]+")
"""One that may have its value in the next word: neither `--nnodes=2` nor `-n2` or `-oL`."""

_FLAGS = frozenset(
    {"multi_gpu", "no_local_rank", "no_python", "no_ssh", "same_network", "standalone", "use_deepspeed", "use_fsdp"}
)
"""Options of launchers that take no value."""


def launcher(words: Sequence[str]) -> str | None:
    """The name of the launcher that a command's words run; None if they run none, or do so in a script."""
    at = _position(words)
    return None if at is None else _name(words[at])


def told_to_training(words: Sequence[str]) -> Sequence[str]:
    """The words from the Python script or module on that a launcher starts; all of them where that is not certain."""
    at = _position(words)
    if at is None:
        return words
    is_python = is_other = False  # whether these words follow Python, or a program that is none
    for before, word in zip(words[at:], words[at + 1 :], strict=False):
        at += 1
        may_be_value, name = _may_be_value(before), _name(word)
        if word.startswith("-"):
            continue
        if name in _LAUNCHERS and (is_python or not may_be_value):  # one starts another
            is_python = is_other = False
        elif is_python:
            if before not in ("-W", "-X"):
                return words[at:]
        elif _PYTHON.fullmatch(name) and not (is_other and may_be_value):
            is_python = True
        elif before in _MODULE and not is_other:
            return words[at:]
        elif _SCRIPT.fullmatch(word):
            return words if is_other or may_be_value else words[at:]
        elif not may_be_value and word != "launch":  # that of accelerate
            is_other = True
    return words


def _position(words: Sequence[str]) -> int | None:
    """Where the launcher is: in the command's place, at first or after programs that run it, and no option's value."""
    for at, word in enumerate(words):
        before, name = words[at - 1] if at else "", _name(word)
        if before in _MODULE:
            return at if name in _LAUNCHERS else None
        if name in _LAUNCHERS and not _may_be_value(before):
            return at
        if _SCRIPT.fullmatch(word) or not (at or _BEFORE.fullmatch(name) or _PYTHON.fullmatch(name)):
            return None
    return None


def _may_be_value(before: str) -> bool:
    """Whether the word after this one may be its value."""
    return _OPTION.fullmatch(before) is not None and before.lstrip("-").replace("-", "_") not in _FLAGS


def _name(word: str) -> str:
    return word.rpartition("/")[2]
