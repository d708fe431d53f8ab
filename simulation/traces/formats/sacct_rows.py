"""Reads the rows of Slurm's sacct: one per run of a job, or per run of a component of a heterogeneous job."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from simulation.traces.formats import sacct_cells as cells
from simulation.traces.formats.cells import LONGEST_S, RowError, label, number, shown
from simulation.traces.formats.sacct_columns import REQUIRED
from simulation.traces.formats.table import Table
from simulation.traces.trace import TraceError

_ONE_OF = (("JobID", "JobIDRaw"), ("AllocTRES", "ReqTRES"))


class Row(Struct, frozen=True):
    """One run, or a job that has not run yet. Times in seconds since 1970, None where Slurm knows none.

    `raw_id` is Slurm's plain number of the job, None if the file lacks JobIDRaw. `held_s` is the run's length without
    suspension.
    """

    line: int
    slurm_id: cells.SlurmId
    raw_id: int | None
    submit_s: float
    eligible_s: float | None
    start_s: float | None
    end_s: float | None
    held_s: float
    gpus: int
    state: str
    time_limit_s: float | None
    user: str
    queue: str
    admin_comment: str


def row_parser(table: Table) -> Callable[[int, list[str]], Row | None]:
    """Reads one row of a table; None for a job step. Raises `TraceError` if columns are missing."""
    for names in _ONE_OF:
        if all(table.index(name) is None for name in names):
            raise TraceError(f"{table.where}: the header lacks {' or '.join(names)}, see `sexplsched trace --help`")
    cell = {
        name: table.cell(name)
        for name in (*REQUIRED, *_ONE_OF[0], *_ONE_OF[1], "Eligible", "Elapsed", "ElapsedRaw", "Timelimit",
                     "TimelimitRaw", "User", "Partition", "AdminComment")
    }  # fmt: skip
    id_column = "JobID" if table.index("JobID") is not None else "JobIDRaw"
    limit_column = "TimelimitRaw" if table.index("TimelimitRaw") is not None else "Timelimit"

    def parse(line: int, row: list[str]) -> Row | None:
        slurm_id = cells.slurm_id(id_column, cell[id_column](row))
        if slurm_id.is_step:
            return None
        raw = cell["JobIDRaw"](row)
        submit_s = cells.time_s("Submit", cell["Submit"](row))
        if submit_s is None:
            raise RowError(f"Submit: found {shown(cell['Submit'](row))}, accepted are times")
        start_s = cells.time_s("Start", cell["Start"](row))
        end_s = cells.time_s("End", cell["End"](row))
        length_s = 0.0 if start_s is None or end_s is None else end_s - start_s
        if length_s < 0:
            raise RowError(f"End: lies {-length_s:g} s before Start")
        return Row(
            line=line,
            slurm_id=slurm_id,
            raw_id=cells.slurm_id("JobIDRaw", raw).base if raw else None,
            submit_s=submit_s,
            eligible_s=cells.time_s("Eligible", cell["Eligible"](row)),
            start_s=start_s,
            end_s=end_s,
            held_s=_held_s(cell["ElapsedRaw"](row), cell["Elapsed"](row), length_s),
            # A job that waits has only asked. Some GPUs (no_consume) are never allocated.
            gpus=cells.gpus("AllocTRES", cell["AllocTRES"](row)) or cells.gpus("ReqTRES", cell["ReqTRES"](row)),
            state=cells.state("State", cell["State"](row)),
            time_limit_s=cells.time_limit_s(limit_column, cell[limit_column](row)),
            user=label("User", cell["User"](row)),
            queue=label("Partition", cell["Partition"](row)),
            admin_comment=cell["AdminComment"](row),
        )

    return parse


def _held_s(elapsed_raw: str, elapsed: str, length_s: float) -> float:
    """Slurm's own count, which leaves suspended time out; the length of the run where it was not asked for."""
    column, held_s = "ElapsedRaw", length_s
    if elapsed_raw.strip():
        held_s = number("ElapsedRaw", elapsed_raw, 0, LONGEST_S)
    elif elapsed.strip():
        column, held_s = "Elapsed", cells.duration_s("Elapsed", elapsed) or 0.0
    # A job that still runs has an elapsed time and no end; it is left out later, with that reason.
    if length_s and held_s > length_s + 1:
        raise RowError(f"{column}: found {held_s:g} s, accepted are up to {length_s:g} s, the time from Start to End")
    return held_s
