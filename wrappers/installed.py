"""Where the native parts of explsched are: the library for LD_PRELOAD and the kernel manager."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

LIBRARY_VARIABLE = "EXPLSCHED_INTERCEPT_LIBRARY"
MANAGER_VARIABLE = "EXPLSCHED_KM"
_LIBRARY = Path("kernel_intercept/lib/libexplsched_intercept.so")
_MANAGER = "sexplkmd"


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
