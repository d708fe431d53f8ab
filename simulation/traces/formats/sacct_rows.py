"""Reads the rows of Slurm's sacct: one per run of a job, or per run of a component of a heterogeneous job.

Every `parse_` function reads one cell as sacct prints it and raises `RowError` on text that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from simulation.traces.formats.table import (
    LONGEST_LABEL,
    LONGEST_S,
    MOST_GPUS,
    RowError,
    Table,
    date_time_s,
    label,
    number,
    shown,
)
from simulation.traces.trace import TraceError

REQUIRED = ("Submit", "Start", "End", "State")
"""Columns by which the format is known."""


_NOTHING = frozenset({"", "Unknown", "None", "N/A", "(null)", "INVALID"})
_NO_LIMIT = frozenset({"UNLIMITED", "Partition_Limit", "NOT_SET", "0"})
_SUMMER_TIME_S = 3600.0
SUMMER_TIME = " (local times when summer time began or ended? Print them with SLURM_TIME_FORMAT=%s)"
"""Added to what may be wrong for that alone."""
_ID = re.compile(
    r"(?P<base>[0-9]{1,18})"
    r"(?:_(?P<task>[0-9]{1,18})|_\[(?P<waiting>[^\]]*)\]|\+(?P<component>[0-9]{1,9}))?"
    r"(?P<step>\.\S+)?"
)
_DURATION = re.compile(
    r"(?:(?P<days>[0-9]{1,9})-)?(?:(?P<hours>[0-9]{1,9}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{2})"
)
_GPU = re.compile(r"gres/gpu(?P<type>:[^=]+)?=(?P<count>.*)")


class SlurmId(Struct, frozen=True):
    """A job id as sacct prints it: `12`, `12_3` (task of an array), `12+1` (component of a heterogeneous job).

    `task` is "" outside arrays, and the text in brackets for the tasks of an array that still wait together.
    """

    base: int
    task: str = ""
    component: int | None = None
    is_step: bool = False


def parse_id(column: str, text: str) -> SlurmId:
    """A job or step id."""
    if len(text) <= 18 and text.isascii() and text.isdigit():  # almost all ids
        return SlurmId(int(text))
    match = _ID.fullmatch(text.strip())
    if match is None:
        raise RowError(f"{column}: found {shown(text)}, accepted: ids such as 12, 12_3, 12+1 or 12.batch")
    component = match["component"]
    return SlurmId(
        base=int(match["base"]),
        task=match["task"] or match["waiting"] or "",
        component=None if component is None else int(component),
        is_step=match["step"] is not None,
    )


def parse_time_s(column: str, text: str) -> float | None:
    """A point in time, as seconds since 1970 or as sacct prints it by default; None where Slurm knows none.

    The default spelling is local time without a zone and read as if it were UTC.
    """
    text = text.strip()
    if text in _NOTHING:
        return None
    if text.isdecimal():
        return number(column, text, 0, LONGEST_S)
    return date_time_s(column, text)


def parse_duration_s(column: str, text: str) -> float | None:
    """A duration: `[days-]hours:minutes:seconds` or `minutes:seconds`; None where Slurm knows none."""
    text = text.strip()
    if text in _NOTHING:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise RowError(f"{column}: found {shown(text)}, accepted: durations such as 1-12:30:00 or 30:00")
    part = {key: int(value or 0) for key, value in match.groupdict().items()}
    seconds = 86400 * part["days"] + 3600 * part["hours"] + 60 * part["minutes"] + part["seconds"]
    return number(column, str(seconds), 0, LONGEST_S)


@lru_cache(4096)  # a history has few limits, requests and states, and very many rows
def parse_time_limit_s(column: str, text: str) -> float | None:
    """A time limit in minutes (TimelimitRaw) or as a duration (Timelimit).

    None if there is none, or if it is the partition's, which sacct does not print.
    """
    text = text.strip()
    if text in _NO_LIMIT or text in _NOTHING:
        return None
    if text.isdecimal():
        return 60 * number(column, text, 1, LONGEST_S / 60)
    return parse_duration_s(column, text)


@lru_cache(4096)
def count_gpus(column: str, text: str) -> int:
    """GPUs in a TRES list such as `billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1`; 0 if there are none.

    A site that accounts GPUs by type gets both the total and the part of each type: the total counts, and without one
    the sum of the types.
    """
    total: int | None = None
    typed = 0
    for part in text.split(","):
        match = _GPU.fullmatch(part.strip())
        if match is None:
            continue
        count = match["count"]
        if not re.fullmatch(r"[0-9]{1,9}", count) or int(count) > MOST_GPUS:
            raise RowError(f"{column}: found {shown(part)}, accepted: whole numbers of GPUs (use --noconvert)")
        if match["type"] is None:
            total = int(count)
        else:
            typed += int(count)
    return typed if total is None else total


@lru_cache(4096)
def gpu_types(column: str, text: str) -> tuple[str, ...]:
    """The types of GPU in a TRES list, in order of their names."""
    found = (_GPU.fullmatch(part.strip()) for part in text.split(","))
    named = {match["type"] for match in found if match is not None and match["type"] and match["count"] != "0"}
    return tuple(sorted(label(column, name.removeprefix(":")) for name in named))


@lru_cache(4096)
def parse_state(column: str, text: str) -> str:
    """A job state without its cause: CANCELLED of `CANCELLED by 1000`."""
    parts = text.split()
    if not parts or not re.fullmatch(r"[A-Z_]+\+?", parts[0]):
        raise RowError(f"{column}: found {shown(text)}, accepted: Slurm's job states such as COMPLETED")
    return parts[0].rstrip("+")


_ONE_OF = (("JobID", "JobIDRaw"), ("AllocTRES", "ReqTRES"))


class SacctRow(Struct, frozen=True):
    """One run, or a job that has not run yet. Times in seconds since 1970, None where Slurm knows none.

    `raw_id` is Slurm's plain number of the job, None if the file lacks JobIDRaw. `ran_s` is the run's length without
    suspension. `is_local`: its times are those of a local clock, not seconds since 1970.
    """

    line: int
    slurm_id: SlurmId
    raw_id: int | None
    submit_s: float
    eligible_s: float | None
    start_s: float | None
    end_s: float | None
    ran_s: float
    gpus: int
    state: str
    time_limit_s: float | None
    user: str
    queue: str
    name: str
    admin_comment: str
    is_local: bool
    gpu_types: tuple[str, ...]


def row_parser(table: Table) -> Callable[[int, list[str]], SacctRow | None]:
    """Reads one row of a table; None for a job step. Raises `TraceError` if columns are missing."""
    for names in _ONE_OF:
        if all(table.index(name) is None for name in names):
            raise TraceError(f"{table.where}: the header lacks {' or '.join(names)}, see `sexplsched trace --help`")
    cell = {
        name: table.cell(name)
        for name in (*REQUIRED, *_ONE_OF[0], *_ONE_OF[1], "Eligible", "Elapsed", "ElapsedRaw", "Timelimit",
                     "TimelimitRaw", "User", "Partition", "JobName", "AdminComment")
    }  # fmt: skip
    id_column = "JobID" if table.index("JobID") is not None else "JobIDRaw"
    limit_column = "TimelimitRaw" if table.index("TimelimitRaw") is not None else "Timelimit"

    def parse(line: int, row: list[str]) -> SacctRow | None:
        slurm_id = parse_id(id_column, cell[id_column](row))
        if slurm_id.is_step:
            return None
        raw = cell["JobIDRaw"](row)
        submit_s = parse_time_s("Submit", cell["Submit"](row))
        if submit_s is None:
            raise RowError(f"Submit: found {shown(cell['Submit'](row))}, accepted: times")
        start_s = parse_time_s("Start", cell["Start"](row))
        end_s = parse_time_s("End", cell["End"](row))
        is_local = not cell["Submit"](row).strip().isdecimal()
        length_s = None if start_s is None or end_s is None else end_s - start_s
        ran_s = _ran_s(cell["ElapsedRaw"](row), cell["Elapsed"](row), length_s, is_local=is_local)
        if start_s is not None and end_s is not None and end_s < start_s:
            end_s = start_s + ran_s
        return SacctRow(
            line=line,
            slurm_id=slurm_id,
            raw_id=parse_id("JobIDRaw", raw).base if raw else None,
            submit_s=submit_s,
            eligible_s=parse_time_s("Eligible", cell["Eligible"](row)),
            start_s=start_s,
            end_s=end_s,
            ran_s=ran_s,
            # A waiting job has only a request. Some GPUs (no_consume) are never allocated.
            gpus=count_gpus("AllocTRES", cell["AllocTRES"](row)) or count_gpus("ReqTRES", cell["ReqTRES"](row)),
            state=parse_state("State", cell["State"](row)),
            time_limit_s=parse_time_limit_s(limit_column, cell[limit_column](row)),
            user=label("User", cell["User"](row)),
            queue=label("Partition", cell["Partition"](row)),
            name=_job_name(cell["JobName"](row)),
            admin_comment=cell["AdminComment"](row),
            is_local=is_local,
            gpu_types=gpu_types("AllocTRES", cell["AllocTRES"](row)) or gpu_types("ReqTRES", cell["ReqTRES"](row)),
        )

    return parse


def _job_name(text: str) -> str:
    """Free text as a label; no job is left out for its name."""
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_LABEL])


def _ran_s(elapsed_raw: str, elapsed: str, length_s: float | None, *, is_local: bool) -> float:
    """Slurm's own count, which leaves suspended time out; the length of the run where it was not asked for.

    A job that still runs has an elapsed time and no length; it is left out later, with that reason. The clock's length
    of a run lacks an hour if summer time ended meanwhile; one that ends within the hour that comes twice may then seem
    to end before its start. Other runs keep their start and their end, so that neighbours do not overlap.
    """
    column = "ElapsedRaw" if elapsed_raw.strip() else "Elapsed"
    elapsed_s = number(column, elapsed_raw, 0, LONGEST_S) if elapsed_raw.strip() else parse_duration_s(column, elapsed)
    if length_s is None:
        return elapsed_s or 0.0
    most_s = length_s + (_SUMMER_TIME_S if is_local else 0.0)
    ran_s = length_s if elapsed_s is None else elapsed_s
    if (length_s and ran_s > most_s + 1) or ran_s < 0:
        hint = SUMMER_TIME if is_local else ""
        if length_s < 0:
            raise RowError(f"End: lies {-length_s:g} s before Start{hint}")
        raise RowError(f"{column}: found {ran_s:g} s, accepted: up to {length_s:g} s, the time from Start to End{hint}")
    return ran_s
