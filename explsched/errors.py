"""The root of every error this project raises on purpose, and warnings where none is raised.

ExplschedError
├── PolicyError            a policy cannot be built, or its plan is invalid (`sched_policy`)
├── TraceError             a trace or cluster file cannot be used (`simulation`)
├── SimulationSettingsError  a setting of a simulation is out of range (`simulation`)
├── SimulationError        a simulation cannot continue (`simulation`)
├── PlotError              a plot cannot be drawn (`simulation`)
├── UnknownNameError       a name that a user gave is unknown
├── WorkerError            a worker process died (`slurm_plugin.cli`)
├── ConfigError            a configuration file is invalid (`slurm_plugin.config`)
├── ProfileError           profiles of kernels or their manager cannot be used (`kernel_intercept.profile`)
├── SlurmError             Slurm refused, is missing or cannot be reached
│   └── SlurmUnreachableError
├── GatewayError           the inference gateway cannot do what is asked (`inference_gateway.errors`)
└── DevClusterError        a private cluster cannot be started or stopped (`slurm_plugin.devcluster`)
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress

_MOST_NAMED = 40


class ExplschedError(Exception):
    """An error whose message is for users: what was found, where, and what is accepted."""


class UnknownNameError(ExplschedError):
    """An unknown sweep, user or service. The message suggests similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """`kind` is a word such as `sweep`; `known` are the existing names."""
        from difflib import get_close_matches  # loads only where something is wrong

        names = sorted(set(known))
        near = " or ".join(map(repr, get_close_matches(name, names, n=3)))
        more = ", ..." if len(names) > _MOST_NAMED else ""
        shown = f"{', '.join(names[:_MOST_NAMED])}{more}" if names else "none"
        super().__init__(f"no {kind} {name!r}{f'; did you mean {near}?' if near else ''} (known: {shown})")


class PolicyError(ExplschedError):
    """A policy's name, parameter or plan is invalid; the message lists what is accepted."""


class SlurmError(ExplschedError):
    """Slurm refused, is missing, gave an unreadable answer or cannot be reached."""


class SlurmUnreachableError(SlurmError):
    """slurmctld does not answer (down, restarting, timed out). Worth trying again later."""


def with_extra(extra: str) -> str:
    """The command that adds an extra of pyproject.toml to the environment that runs, which may have no pip."""
    return f"pip --python {shlex.quote(sys.executable)} install 'explsched[{extra}]'"


def warn(program: str, text: str) -> None:
    """Tell the user on standard error, if that can be: a full disk must not end what runs on after a warning."""
    line = f"{program}: {text}\n"
    stream, own = sys.stderr, sys.__stderr__  # None where it was closed before the start
    with suppress(OSError):
        if own is not None and stream is own:
            # Past its buffer, where the text would stay that cannot be written: Python would end with status 120.
            os.write(own.fileno(), line.encode(errors="backslashreplace"))
        elif stream is not None:
            stream.write(line)
