"""What the values of job options may look like, and the one form in which each is written.

A kind's `canonical` accepts what a person types and returns that form; it raises ValueError for anything else.
`accepted` says in words what is accepted. The SPANK plugin has the same kinds in C: slurm_plugin/spank/value.c.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from explsched.parameters import of_pairs

TEXT_BYTES = 128
PAIRS_BYTES = 512
MAX_GPUS = 100_000
_PATH_BYTES = 4095
_SIGNALS = ("USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "ALRM", "URG")
_SIZES = re.compile(r"([0-9]{1,6})-([0-9]{1,6})(?:/([0-9]{1,6}))?")
_FRACTION = re.compile(r"(?=\.?[0-9])([0-9]*)\.?([0-9]*)")
_FRACTION_CHARACTERS = 20
_MILLISECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")
_MEMORY = re.compile(r"([0-9]{1,12})([KMGTkmgt]?)")
_KIB = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_WHOLE_GPU = 1000
_TEN_THOUSAND = 10_000
_DIGITS_READ = 4


class Kind(NamedTuple):
    """A kind of value.

    Attributes:
        c_name: the kind's function in the SPANK plugin.
        accepted: what is accepted, for messages and manuals.
        canonical: from what a person types to the form in which it is written. Raises ValueError.
        choices: the values, if they can be listed.

    """

    c_name: str
    accepted: str
    canonical: Callable[[str], str]
    choices: tuple[str, ...] = ()


def _text(text: str) -> str:
    if not 1 <= len(text.encode()) <= TEXT_BYTES or _has_control_characters(text):
        raise ValueError(text)
    return text


def _pairs(text: str) -> str:
    if len(text.encode()) > PAIRS_BYTES or _has_control_characters(text):
        raise ValueError(text)
    of_pairs(text)
    return text


def _has_control_characters(text: str) -> bool:
    return any(c < " " or c == "\x7f" for c in text)


def _path(text: str) -> str:
    if not 1 <= len(os.fsencode(text)) <= _PATH_BYTES or "\0" in text:
        raise ValueError(text)
    return text


def _signal(text: str) -> str:
    """In capitals, without SIG."""
    name = text.upper().removeprefix("SIG")
    if name not in _SIGNALS or not text.isascii():
        raise ValueError(text)
    return name


def _fraction(text: str) -> str:
    """A decimal fraction, such as 0.25."""
    return f"{permille(text) / _WHOLE_GPU:g}"


def _memory(text: str) -> str:
    """Whole mebibytes, such as 20480M."""
    return f"{memory_mib(text)}M"


def _sizes(text: str) -> str:
    sizes(text)
    return text


def _stages(text: str) -> str:
    stages_ms(text)
    return text


def one_of(*words: str) -> Kind:
    """One of a few words."""

    def canonical(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return Kind("one_of", ", ".join(words), canonical, words)


TEXT = Kind("text", f"1 to {TEXT_BYTES} bytes of UTF-8 text without control characters", _text)
"""A name of the user's own, such as that of a metric."""

HYPER_PARAMETERS = Kind("pairs", f"K=V,K=V, such as lr=0.1,width=64, at most {PAIRS_BYTES} bytes of UTF-8", _pairs)

FILE_PATH = Kind("text", f"a path of at most {_PATH_BYTES} bytes", _path)
"""Only programs inside the job have such options."""

SIGNAL = Kind("signal_name", ", ".join(_SIGNALS), _signal, _SIGNALS)
"""A signal that a job can catch, that Slurm sends by this name, and that Slurm does not use itself."""

FRACTION = Kind("fraction", "0.001 to 1", _fraction)
"""A fraction of the GPU's time, in thousandths at the finest."""

MEMORY_AMOUNT = Kind("text", "whole numbers with K, M, G or T, such as 20G; M if without; at least 1M", _memory)
"""An amount of a GPU's memory, with Slurm's suffixes: powers of 1024, and mebibytes without one."""

SIZES = Kind(
    "sizes",
    f"MIN-MAX or MIN-MAX/N, such as 1-8 or 8-32/8 (1 <= MIN < MAX <= {MAX_GPUS}, both multiples of N)",
    _sizes,
)
"""`MIN-MAX` GPUs on one node, or `MIN-MAX/N`: N on each of several nodes."""

STAGES = Kind("stages", "four numbers of milliseconds ITERATION/IO/GPU/NET, as in 110/60/45/5", _stages)
"""Milliseconds of one iteration that runs alone, and of its three stages."""

SWITCH = one_of("0", "1")
"""On or off. On a command line the option alone switches on."""


def memory_mib(text: str) -> int:
    """Mebibytes, at least 1. Raises ValueError."""
    match = _MEMORY.fullmatch(text)
    mib = int(match[1]) * _KIB[match[2].upper() or "M"] // _KIB["M"] if match else 0
    if mib == 0:
        raise ValueError(text)
    return mib


def permille(text: str) -> int:
    """Thousandths of a GPU, from 1 to 1000. Raises ValueError."""
    match = _FRACTION.fullmatch(text)
    if match is None or not text.isascii() or len(text) > _FRACTION_CHARACTERS:
        raise ValueError(text)
    # In whole numbers, as in C: there the locale decides how a floating-point number is written.
    value = int(match[1] or "0") * _TEN_THOUSAND + int(match[2][:_DIGITS_READ].ljust(_DIGITS_READ, "0"))
    found = (value + 5) // 10
    if value > _TEN_THOUSAND or found < 1:
        raise ValueError(text)
    return found


def sizes(text: str) -> tuple[int, int, int | None]:
    """The fewest GPUs, the most, and how many there are on each node (None: all on one). Raises ValueError."""
    match = _SIZES.fullmatch(text)
    if match is None or not text.isascii():
        raise ValueError(text)
    least, most, per_node = int(match[1]), int(match[2]), None if match[3] is None else int(match[3])
    unit = 1 if per_node is None else per_node
    if not (unit and 1 <= least < most <= MAX_GPUS) or least % unit or most % unit:
        raise ValueError(text)
    return least, most, per_node


def stages_ms(text: str) -> tuple[float, float, float, float]:
    """Milliseconds of an iteration, and of its I/O, GPU and network stages. Raises ValueError."""
    parts = text.split("/")
    if len(parts) != 4 or not text.isascii() or not all(map(_MILLISECONDS.fullmatch, parts)):
        raise ValueError(text)
    iteration, io, gpu, net = map(float, parts)
    if iteration <= 0 or io + gpu + net <= 0:
        raise ValueError(text)
    return iteration, io, gpu, net
