"""The native parts of explsched, as a job needs them: where library and kernel manager are, and LD_PRELOAD."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

LIBRARY_VARIABLE = "EXPLSCHED_INTERCEPT_LIBRARY"
MANAGER_VARIABLE = "EXPLSCHED_KM"
_LIBRARY = Path("kernel_intercept/lib/libexplsched_intercept.so")
_MANAGER = "sexplkmd"
_PRELOAD = "LD_PRELOAD"
_TIMEOUT_S = 10.0


class NotInstalledError(Exception):
    """A native part is missing; the message says where it was looked for."""


def library(environment: Mapping[str, str]) -> Path:
    """The interposer. Raises `NotInstalledError`."""
    named = environment.get(LIBRARY_VARIABLE)
    # An editable install has the Python files in the source tree and the library among the installed packages.
    bases = [Path(__file__).parent.parent, *(Path(sysconfig.get_path(kind)) for kind in ("platlib", "purelib"))]
    places = [Path(named)] if named else [base / _LIBRARY for base in dict.fromkeys(bases)]
    return _first("the interposer", places, LIBRARY_VARIABLE)


def manager(environment: Mapping[str, str]) -> Path:
    """The kernel manager. Raises `NotInstalledError`."""
    named = environment.get(MANAGER_VARIABLE)
    if named:
        return _first("the kernel manager", [Path(named)], MANAGER_VARIABLE)
    # The one that came with this package first: interposer and manager of two versions do not understand each other.
    bases = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    places = [base / _MANAGER for base in dict.fromkeys(bases)]
    on_path = shutil.which(_MANAGER, path=environment.get("PATH"))
    return _first("the kernel manager", [*places, *([Path(on_path)] if on_path else [])], MANAGER_VARIABLE)


def _first(what: str, places: list[Path], variable: str) -> Path:
    for place in places:
        if place.is_file():
            return place.absolute()
    looked = ", ".join(map(str, places))
    raise NotInstalledError(f"{what} is not at {looked}; see docs/kernels.md ({variable} names another)")


def preload_fault(library: Path, environment: Mapping[str, str]) -> str | None:
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


def ld_preload(library: Path, environment: Mapping[str, str]) -> str:
    """The value of LD_PRELOAD with the library. What is there stays, and in front: the user chose it."""
    before = environment.get(_PRELOAD, "").replace(":", " ").split()
    here = os.fspath(library)
    return ":".join(before if here in before else [*before, here])
