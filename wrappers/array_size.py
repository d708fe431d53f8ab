"""What sbatch does not say of an array with more tasks than the site takes: only that its specification is invalid."""

from __future__ import annotations

import re
import subprocess

from wrappers import scontrol
from wrappers.sbatch_options import script_value


def why_refused(script: str) -> str:
    """That the array of a generated script is too large, and what to do; empty if it is not, or nobody tells."""
    last = re.match(r"0-(\d+)", script_value(script, "array") or "")
    if last is None:
        return ""
    try:
        told = scontrol.show("config")
    except (OSError, subprocess.SubprocessError):
        return ""
    most = re.search(r"^MaxArraySize\s*=\s*(\d+)", told, re.MULTILINE)
    tasks = int(last[1]) + 1
    if most is None or tasks <= int(most[1]):
        return ""
    return (
        f"the grid has {tasks} tasks, and MaxArraySize of this site is {int(most[1])}: split the grid, or use "
        "`sexplsched sweep run` with sampler grid"
    )
