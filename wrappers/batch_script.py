"""The job's batch script, which alone is sent the checkpoint signal, and must live on to have it passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from signal import Signals

from wrappers.signal_handlers import children, command_line, would_end


def would_die(number: Signals, environment: Mapping[str, str]) -> bool | None:
    """Whether a signal would end the job's batch script; None where that cannot be seen, as on another node.

    A script that has become this process by `exec` lives on: signals are about to be held back here.
    """
    try:
        pid = _process(environment)
        return None if pid is None else pid != os.getpid() and would_end(pid, number)
    except (OSError, KeyError, ValueError):  # as in a container with processes of its own
        return None


def _process(environment: Mapping[str, str]) -> int | None:
    """The process of the script. In a step only the first task looks, for Slurm's process above the script."""
    if "SLURM_STEP_ID" not in environment:
        return int(environment["SLURM_TASK_PID"])
    if environment.get("SLURM_PROCID") != "0":
        return None
    above = [f"slurmstepd: [{environment['SLURM_JOB_ID']}.batch]".encode()]
    return next((pids[0] for pid, pids in children().items() if command_line(pid)[:1] == above), None)
