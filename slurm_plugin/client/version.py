"""Releases of Slurm."""

from __future__ import annotations

import re
from typing import Self

from msgspec import Struct


class SlurmVersion(Struct, frozen=True, order=True):
    """A Slurm release such as 22.5.8 (Slurm writes 22.05.8)."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """The first release that a text names, as `slurm-wlm 22.05.8`. Raises `ValueError` if it names none."""
        match = re.search(r"\b(\d\d)\.(\d\d)(?:\.(\d+))?", text)
        if match is None:
            raise ValueError(f"{text.strip()!r} holds no version")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    @property
    def release(self) -> str:
        """Without the patch level, as Slurm writes it: 22.05. Programs built for one serve all its patch levels."""
        return f"{self.major}.{self.minor:02d}"

    def __str__(self) -> str:
        return f"{self.release}.{self.patch}"
