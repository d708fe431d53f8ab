"""New site factors for many jobs through our own program, which keeps several requests to slurmctld under way.

scontrol sends a request only when the one before is answered: a new order for a thousand jobs takes it twice as long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_plugin.client import process
from slurm_plugin.client.changes import ChangeFailure, SetSiteFactor
from slurm_plugin.client.errors import SlurmUnreachableError

PROGRAM = "explsched-site-factors"
_UNREACHABLE = 1


def find(release: str, timeout_s: float, environment: Mapping[str, str]) -> str | None:
    """The program, if it is built for this release (as `22.05`); libslurm speaks to no other one reliably."""
    import shutil  # brings the compression libraries, which commands that only read do not need

    beside = str(Path(sys.executable).parent)  # where pip puts it, whether or not that is on PATH
    path = shutil.which(PROGRAM, path=os.pathsep.join((beside, environment.get("PATH", ""))))
    if path is None:
        return None
    answer = process.run([path, "--version"], timeout_s, environment)
    return path if answer.returncode == 0 and answer.out.strip() == release else None


def write(
    program: str, changes: Sequence[SetSiteFactor], timeout_s: float, environment: Mapping[str, str]
) -> tuple[ChangeFailure, ...]:
    """Set them all; returns those that Slurm refused. Raises `SlurmUnreachableError` if it does not answer."""
    lines = "".join(f"{change.job_id} {change.site_factor}\n" for change in changes)
    answer = process.run([program], timeout_s, environment, stdin=lines)
    refusals = dict(line.split(" ", 1) for line in answer.out.splitlines())
    if answer.returncode == _UNREACHABLE:
        raise SlurmUnreachableError(f"{PROGRAM}: {next(iter(refusals.values()), answer.err.strip())}")
    if answer.returncode != 0:  # it did not come to its end: nothing is known of any change
        why = answer.err.strip() or f"{PROGRAM} ended with status {answer.returncode}"
        return tuple(ChangeFailure(change, why) for change in changes)
    return tuple(
        ChangeFailure(change, refusals[str(change.job_id)]) for change in changes if str(change.job_id) in refusals
    )
