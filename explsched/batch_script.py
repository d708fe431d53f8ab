"""The job's batch script, which alone is sent the checkpoint signal, and must live on to have it passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping

from explsched.process_signals import children, command_line, signal_number, would_end

DIES = (
    "{} would kill the job's script, which waits, so the job is not preempted; its last command must begin with exec "
    "sxrun, and what follows belongs into that: exec sxrun -- bash -c '...'"
)
"""The warning, for the signal's name."""

_USUAL = ("USR1", "USR2", "TERM", "HUP")


def would_die(name: str, environment: Mapping[str, str]) -> bool | None:
    """Whether a signal would end the job's batch script; None where that cannot be seen, as on another node.

    Of a signal that is not known ("") this is said only if each of the usual ones would. A script that has become
    this process by `exec` lives on: signals are about to be held back or handled here.
    """
    try:
        pid = _process(environment)
        if pid is None or pid == os.getpid():
            return None if pid is None else False
        if not name:
            return all(would_end(pid, signal_number(one)) for one in _USUAL) or None
        return would_end(pid, signal_number(name))
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
