"""Prints as JSON what sharing a GPU would find on this machine: `python -m wrappers.share_check`.

`sexplsched doctor` runs it, so that it looks with the eyes of `sxrun`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping

from wrappers import installed, kernel_manager, mps, preload

_BUILD = "install explsched again with a C++ compiler, on Linux: pip install --force-reinstall --no-deps explsched"


def findings(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """What was checked, ok or note, what was found, and what to do about it."""
    try:
        library = installed.library(environment)
        fault = preload.fault(library, environment)
        yield ("interposer", "note", f"{library}: {fault}", _BUILD) if fault else ("interposer", "ok", str(library), "")
    except installed.NotInstalledError as error:
        yield "interposer", "note", str(error), _BUILD
    try:
        running = kernel_manager.answering(environment)
        found = f"{installed.manager(environment)}{f', one listens at {running}' if running else ''}"
        yield "kernel manager", "ok", found, ""
    except installed.NotInstalledError as error:
        yield "kernel manager", "note", str(error), _BUILD
    try:
        running = mps.answering(environment)
        found = f"{mps.control(environment)}{f', a daemon serves {running}' if running else ''}"
        yield "CUDA MPS", "ok", found, ""
    except mps.MpsError as error:
        yield "CUDA MPS", "note", str(error), "look again on a GPU node"


def main() -> int:
    """Print the findings, a list of lists."""
    sys.stdout.write(json.dumps(list(findings(os.environ))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
