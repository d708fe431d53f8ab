"""The adapter that writes with pyslurm (25.5 or newer) where it can, and uses the s* commands for the rest.

Former ones have no reservations. Nothing is read with it: it has other names for what the commands print, as for flags
of reservations, and lacks some. It runs in a child process of its own: its import can end the process it happens in,
its calls hold the interpreter's lock, and neither can be bounded in time from within. The functions below the class run
in the child, and import pyslurm there.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, ParamSpec, TypeVar

from explsched.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.client import batch
from slurm_plugin.client.changes import (
    NOT_KNOWN,
    Change,
    ChangeFailure,
    CreateReservation,
    DeleteReservation,
    NotNow,
    SetSiteFactor,
    Unanswered,
)
from slurm_plugin.client.cli import CliClient

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

PATIENCE = 0.5
"""The part of a call's time after which it tries no more changes once Slurm tells that it awaits a job's record."""


class PyslurmClient(CliClient):
    """Slurm, with pyslurm for leases and site factors; `timeout_s` bounds each call.

    pyslurm 25.11 reads neither site factors nor requests such as --gpus=3: Slurm writes `gres/gpu:3` there, and its
    parser expects an equals sign. It knows neither all options of sbatch nor those of plugins.
    """

    name = "pyslurm"

    def __init__(self, timeout_s: float = 30.0) -> None:
        super().__init__(timeout_s)
        self._pool: ProcessPoolExecutor | None = None

    def apply(self, changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
        """Carry out the changes in order: runs of those that pyslurm can do there, the others by the commands."""
        failed: list[ChangeFailure] = []
        patience_s = PATIENCE * self._timeout_s
        for by_pyslurm, run in itertools.groupby(changes, _suits_pyslurm):
            group = list(run)
            failed += self._for_good(self._call(_apply, group, patience_s)) if by_pyslurm else super().apply(group)
        return tuple(failed)

    def close(self) -> None:
        """End the child process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _call(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        future = self._pool.submit(function, *args, **kwargs)
        try:
            return future.result(self._timeout_s)
        except TimeoutError as error:
            self._kill()
            raise SlurmUnreachableError(f"pyslurm: no answer from slurmctld within {self._timeout_s:g} s") from error
        except BrokenProcessPool as error:
            self._kill()
            raise SlurmError("pyslurm ended its process; is Slurm set up here? See `sexplsched doctor`") from error

    def _kill(self) -> None:
        """Drop a child that hangs or has died; the next call starts a new one."""
        if self._pool is not None:
            for process in tuple(self._pool._processes.values()):
                process.kill()
        self.close()


def _suits_pyslurm(change: Change) -> bool:
    """A site factor of 0 does not: pyslurm takes zero for "not given"."""
    if isinstance(change, SetSiteFactor):
        return change.site_factor != 0
    return isinstance(change, CreateReservation | DeleteReservation)


def _apply(changes: Sequence[Change], patience_s: float) -> tuple[ChangeFailure, ...]:
    """Carry out site factors and reservations, one call each; refused ones are returned.

    Slurm takes 5 s to say that it awaits a job's record. If it still says so after `patience_s`, the rest is not tried:
    there would be no time left to tell of which jobs it has said so.
    """
    import pyslurm

    failed: list[ChangeFailure] = []
    until_s = time.monotonic() + patience_s
    for at, change in enumerate(changes, start=1):
        try:
            _carry_out(pyslurm, change)
        except pyslurm.RPCError as error:
            failed.append(batch.kind_of_refusal(str(error))(change, str(error)))
            if isinstance(failed[-1], NotNow) and time.monotonic() >= until_s:
                return (*failed, *(Unanswered(one, f"{NOT_KNOWN}not tried, Slurm is slow") for one in changes[at:]))
        except (KeyError, TypeError, ValueError) as error:  # a value that pyslurm cannot put into a request
            failed.append(ChangeFailure(change, f"pyslurm: {type(error).__name__}: {error}"))
    return tuple(failed)


def _carry_out(pyslurm: Any, change: Change) -> None:  # noqa: ANN401  an optional module without type hints
    match change:
        case SetSiteFactor(job_id, factor):
            pyslurm.Job(job_id).modify(pyslurm.JobSubmitDescription(site_factor=factor))
        case DeleteReservation(name):
            pyslurm.Reservation(name).delete()
        case CreateReservation(name, start_s, minutes, names, users, partition):
            kinds = pyslurm.ReservationFlags
            pyslurm.Reservation(
                name,
                start_time=round(start_s),  # a float is refused as an invalid time
                duration=minutes,
                nodes=",".join(names),
                users=list(users),
                partition=partition,
                flags=kinds.FLEX | kinds.NO_JOB_HOLD_AFTER_END | kinds.IGNORE_RUNNING_JOBS,
            ).create()
        case _:
            raise SlurmError(f"pyslurm is not used for {change}")
