"""What the values of job options may look like, and the one form in which each is written.

A kind's `canonical` accepts what a person types and returns that form; it raises ValueError for anything else.
`accepted` says in words what is accepted. The SPANK plugin has the same kinds in C: slurm_plugin/spank/value.c.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Protocol

from explsched.parameters import of_pairs

TEXT_BYTES = 128
PAIRS_BYTES = 512
MAX_GPUS = 100_000
_SIZES = re.compile(r"([0-9]{1,6})-([0-9]{1,6})(?:/([0-9]{1,6}))?")
_FRACTION = re.compile(r"(?=\.?[0-9])([0-9]*)\.?([0-9]*)")
_FRACTION_CHARACTERS = 20
_MILLISECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")
_MEMORY = re.compile(r"([0-9]{1,12})([KMGTkmgt]?)")
_KIB = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_WHOLE_GPU = 1000
_TEN_THOUSAND = 10_000
_DIGITS_READ = 4


class Kind(Protocol):
    """A kind of value."""

    @property
    def c_name(self) -> str:
        """The kind's function in the SPANK plugin."""

    @property
    def accepted(self) -> str:
        """What is accepted, for messages and manuals."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values, if they can be listed."""

    def canonical(self, text: str) -> str:
        """The form in which the value is written. Raises ValueError if it is not acceptable."""


class Text(NamedTuple):
    """A name of the user's own, such as that of a metric."""

    c_name: str = "text"
    accepted: str = f"1 to {TEXT_BYTES} bytes of text without control characters"
    choices: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """The text itself."""
        if not 1 <= len(text.encode()) <= TEXT_BYTES or any(c < " " or c == "\x7f" for c in text):
            raise ValueError(text)
        return text


class HyperParameters(NamedTuple):
    """Hyper-parameters."""

    c_name: str = "pairs"
    accepted: str = f"K=V,K=V, such as lr=0.1,width=64, at most {PAIRS_BYTES} bytes"
    choices: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """The text itself."""
        if len(text.encode()) > PAIRS_BYTES or any(c < " " or c == "\x7f" for c in text):
            raise ValueError(text)
        of_pairs(text)
        return text


class FilePath(NamedTuple):
    """The name of a file. Only programs inside the job have such options."""

    c_name: str = "text"
    accepted: str = "a path of at most 4095 bytes"
    choices: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """The text itself."""
        if not 1 <= len(os.fsencode(text)) <= 4095 or "\0" in text:
            raise ValueError(text)
        return text


class OneOf(NamedTuple):
    """One of a few words."""

    choices: tuple[str, ...]
    c_name: str = "one_of"

    @property
    def accepted(self) -> str:
        """The words."""
        return ", ".join(self.choices)

    def canonical(self, text: str) -> str:
        """The word itself."""
        if text not in self.choices:
            raise ValueError(text)
        return text


class Signal(NamedTuple):
    """A signal that a job can catch, that Slurm sends by this name, and that Slurm does not use itself."""

    choices: tuple[str, ...] = ("USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "ALRM", "URG")
    c_name: str = "signal_name"

    @property
    def accepted(self) -> str:
        """The names."""
        return ", ".join(self.choices)

    def canonical(self, text: str) -> str:
        """The name in capitals, without SIG."""
        name = text.upper().removeprefix("SIG")
        if name not in self.choices or not text.isascii():
            raise ValueError(text)
        return name


class Fraction(NamedTuple):
    """A fraction of the GPU's time, in thousandths at the finest."""

    c_name: str = "fraction"
    accepted: str = "0.001 to 1"
    choices: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """A decimal fraction, such as 0.25."""
        return f"{permille(text) / _WHOLE_GPU:g}"


class MemoryAmount(NamedTuple):
    """An amount of a GPU's memory, with Slurm's suffixes: powers of 1024, and mebibytes without one."""

    c_name: str = "text"
    accepted: str = "whole numbers with K, M, G or T, such as 20G; M if without; at least 1M"
    choices: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """Whole mebibytes, such as 20480M."""
        return f"{memory_mib(text)}M"


class Sizes(NamedTuple):
    """`MIN-MAX` GPUs on one node, or `MIN-MAX/N`: N on each of several nodes."""

    c_name: str = "sizes"
    accepted: str = f"MIN-MAX or MIN-MAX/N, such as 1-8 or 8-32/8 (1 <= MIN < MAX <= {MAX_GPUS}, both multiples of N)"
    choices: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """The text itself."""
        sizes(text)
        return text


class Stages(NamedTuple):
    """Milliseconds of one iteration that runs alone, and of its three stages."""

    c_name: str = "stages"
    accepted: str = "four numbers of milliseconds ITERATION/IO/GPU/NET, as in 110/60/45/5"
    choices: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """The text itself."""
        stages_ms(text)
        return text


class Switch(NamedTuple):
    """On or off. On a command line the option alone switches on."""

    c_name: str = "one_of"
    accepted: str = "0, 1"
    choices: tuple[str, ...] = ("0", "1")

    def canonical(self, text: str) -> str:
        """1 for on, 0 for off."""
        if text not in self.choices:
            raise ValueError(text)
        return text


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
