"""Checks that a library can be preloaded, and adds it to LD_PRELOAD."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_PRELOAD = "LD_PRELOAD"
_TIMEOUT_S = 10.0


def fault(library: Path, environment: Mapping[str, str]) -> str | None:
    """Why the library cannot be preloaded here, or None.

    A program that does nothing is run with it, with all its symbols bound at start, as dlopen with RTLD_NOW would do:
    what ld.so dislikes (another architecture, a newer glibc, a missing symbol) shows as text or a failure.
    """
    if set(str(library)) & set(": \t\n"):
        return "its path has a colon or white space, which LD_PRELOAD cannot hold"
    tried = {**environment, _PRELOAD: str(library), "LD_BIND_NOW": "1"}
    try:
        done = subprocess.run(
            ["/bin/true"], env=tried, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"/bin/true could not be run with it: {error}"
    words = done.stderr.strip()
    if words:
        return words.splitlines()[0]
    return f"/bin/true ends with status {done.returncode} under it" if done.returncode else None


def added(library: Path, environment: Mapping[str, str]) -> str:
    """The value of LD_PRELOAD with the library. What is there stays, and in front: the user chose it."""
    before = environment.get(_PRELOAD, "").replace(":", " ").split()
    here = os.fspath(library)
    return ":".join(before if here in before else [*before, here])
