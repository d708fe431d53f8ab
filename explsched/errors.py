"""The root of every error this project raises on purpose.

ExplschedError
├── PolicyError            a policy cannot be built or used as asked (`sched_policy`)
├── TraceError             a trace or cluster file cannot be used (`simulation`)
├── SimulationSettingsError  a setting of a simulation is out of range (`simulation`)
├── SimulationError        a simulation cannot go on (`simulation`)
├── PlotError              a picture cannot be drawn (`simulation`)
├── UnknownNameError       nothing by a name that a user gave is known
├── WorkerError            a worker process died (`slurm_plugin.cli`)
├── ConfigError            a configuration file is wrong (`slurm_plugin.config`)
├── ProfileError           profiles of kernels or their manager cannot be used (`kernel_intercept.profile`)
├── SlurmError             Slurm refused, is missing or cannot be reached
│   └── SlurmUnreachableError
├── GatewayError           the inference gateway cannot do what is asked (`inference_gateway.errors`)
└── DevClusterError        a private cluster cannot be started or stopped (`slurm_plugin.devcluster`)
"""

from __future__ import annotations

from collections.abc import Iterable

_MOST_NAMED = 40


class ExplschedError(Exception):
    """An error with a message meant for a person: what was found, where, and what is accepted."""


class UnknownNameError(ExplschedError):
    """Nothing of that kind has the name: a sweep, a user, a service. The message has those that are most like it."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """`kind` is a word such as `sweep`; `known` are the names that there are."""
        from difflib import get_close_matches  # loads only where something is wrong

        names = sorted(set(known))
        near = " or ".join(map(repr, get_close_matches(name, names, n=3)))
        more = ", ..." if len(names) > _MOST_NAMED else ""
        shown = f"{', '.join(names[:_MOST_NAMED])}{more}" if names else "none"
        super().__init__(f"no {kind} {name!r}{f'; did you mean {near}?' if near else ''} (known: {shown})")


class PolicyError(ExplschedError):
    """A policy name or parameter is not usable; the message lists what is."""


class SlurmError(ExplschedError):
    """Slurm refused, is missing, answered something unreadable or cannot be reached."""


class SlurmUnreachableError(SlurmError):
    """slurmctld does not answer (down, restarting, timed out). Worth trying again later."""
