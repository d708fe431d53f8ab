"""All writes of a pass as the input of one scontrol process.

scontrol goes on after a command that fails, but does not say which one that was. So a marker, a word it does not know,
follows each command: scontrol complains about it on standard error, and everything it printed between two such
complaints belongs to the command between them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

from slurm_plugin.client.protocol import (
    AttachReservation,
    Change,
    ChangeFailure,
    CreateReservation,
    DeleteReservation,
    MoveReservation,
    RequeueJob,
    SetSiteFactor,
    SlurmError,
    StartAtOnce,
)

_SAFE = re.compile(r"[A-Za-z0-9_.@-]+")
"""What may stand in a scontrol command: no blank, quote, newline, comma or '='."""


def text(changes: Sequence[Change], mark: str) -> str:
    """Standard input for scontrol. Raises `SlurmError` for a name that scontrol might read as something else."""
    return "".join(f"{command(change)}\n{mark}-{i}\n" for i, change in enumerate(changes))


def failures(changes: Sequence[Change], stderr: str, mark: str) -> tuple[ChangeFailure, ...]:
    """The changes scontrol complained about, and its words; a change it never came to is a failure too."""
    found = []
    rest = stderr
    for i, change in enumerate(changes):
        words, reached, after = rest.partition(f"invalid keyword: {mark}-{i}\n")
        if not reached:
            found.append(ChangeFailure(change, words.strip() or "scontrol ended before it came to this"))
            rest = ""
            continue
        rest = after
        if words.strip():
            found.append(ChangeFailure(change, words.strip()))
    return tuple(found)


def command(change: Change) -> str:
    """One line of scontrol for one change."""
    match change:
        case SetSiteFactor(job_id, factor):
            return f"update JobId={int(job_id)} SiteFactor={int(factor)}"
        case AttachReservation(job_id, name):
            return f"update JobId={int(job_id)} ReservationName={_safe(name) if name else ''}"
        case RequeueJob(job_id):
            return f"requeue Incomplete {int(job_id)}"
        case StartAtOnce(job_id):
            return f"update JobId={int(job_id)} StartTime=now"
        case DeleteReservation(name):
            return f"delete ReservationName={_safe(name)}"
        case MoveReservation(name, start_s, minutes, nodes):
            return (
                f"update ReservationName={_safe(name)} StartTime={_time(start_s)} "
                f"Duration={int(minutes)} Nodes={_list(nodes)}"
            )
        case CreateReservation(name, start_s, minutes, nodes, users, partition, flags):
            return (
                f"create reservation ReservationName={_safe(name)} StartTime={_time(start_s)} Duration={int(minutes)} "
                f"Nodes={_list(nodes)} Users={_list(users)} PartitionName={_safe(partition)} Flags={_list(flags)}"
            )
        case _:
            raise SlurmError(f"scontrol has no command for {change}")


def _safe(word: str) -> str:
    if not _SAFE.fullmatch(word):
        raise SlurmError(f"{word!r} cannot be given to scontrol: letters, digits and _.@- are accepted")
    return word


def _list(words: Sequence[str]) -> str:
    return ",".join(_safe(word) for word in words)


def _time(seconds: float) -> str:
    """Slurm reads times in the local zone of the process; ours and scontrol's are the same."""
    return datetime.datetime.fromtimestamp(round(seconds)).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
