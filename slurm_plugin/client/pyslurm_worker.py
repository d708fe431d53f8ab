"""What the pyslurm adapter's child process does. pyslurm is imported in the functions, that is in the child only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_plugin.client import spelling
from slurm_plugin.client.changes import Change, ChangeFailure, CreateReservation, DeleteReservation, SetSiteFactor
from slurm_plugin.client.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.client.records import SlurmReservation


def reservations() -> tuple[SlurmReservation, ...]:
    """All reservations."""
    import pyslurm

    return tuple(
        SlurmReservation(
            name=reservation.name,
            start_s=float(reservation.start_time),
            end_s=float(reservation.end_time),
            nodes=spelling.expand_hosts(reservation.nodes or ""),
            users=tuple(reservation.users or ()),
            flags=frozenset(flag.name for flag in type(reservation.flags) if flag in reservation.flags),
        )
        for reservation in _loaded(pyslurm.Reservations.load).values()
    )


def apply(changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
    """Carry out site factors and reservations, one call each; refused ones are returned."""
    import pyslurm

    failed = []
    for change in changes:
        try:
            _carry_out(pyslurm, change)
        except pyslurm.RPCError as error:
            failed.append(ChangeFailure(change, str(error)))
        except (KeyError, TypeError, ValueError) as error:  # a value that pyslurm cannot put into a request
            failed.append(ChangeFailure(change, f"pyslurm: {type(error).__name__}: {error}"))
    return tuple(failed)


def _carry_out(pyslurm: Any, change: Change) -> None:  # noqa: ANN401  an optional module without type hints
    match change:
        case SetSiteFactor(job_id, factor):
            pyslurm.Job(job_id).modify(pyslurm.JobSubmitDescription(site_factor=factor))
        case DeleteReservation(name):
            pyslurm.Reservation(name).delete()
        case CreateReservation(name, start_s, minutes, names, users, partition, flags):
            kinds = pyslurm.ReservationFlags
            known = {
                "FLEX": kinds.FLEX,
                "NO_HOLD_JOBS_AFTER": kinds.NO_JOB_HOLD_AFTER_END,
                "IGNORE_JOBS": kinds.IGNORE_RUNNING_JOBS,
            }
            wanted = known[flags[0]]
            for flag in flags[1:]:
                wanted |= known[flag]
            pyslurm.Reservation(
                name,
                start_time=round(start_s),  # a float is refused as an invalid time
                duration=minutes,
                nodes=",".join(names),
                users=list(users),
                partition=partition,
                flags=wanted,
            ).create()
        case _:
            raise SlurmError(f"pyslurm is not used for {change}")


def _loaded(load: Any) -> Any:  # noqa: ANN401
    import pyslurm

    try:
        return load()
    except pyslurm.RPCError as error:
        raise SlurmUnreachableError(f"pyslurm: {error}") from error
