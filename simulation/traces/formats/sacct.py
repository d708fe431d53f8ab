"""A site's own history, as Slurm's sacct prints it, as a trace. An admin makes the file with `COMMAND`."""

from __future__ import annotations

from pathlib import Path

from simulation.traces.formats.base import Format, trace_of
from simulation.traces.formats.sacct_columns import REQUIRED
from simulation.traces.formats.table import Table
from simulation.traces.trace import Trace, TraceJob

COMMAND = """\
SLURM_TIME_FORMAT=%s sacct --allusers --allocations --duplicates \\
  --parsable2 --noconvert --starttime 2026-01-01 --endtime 2026-02-01 \\
  --format=JobID,JobIDRaw,User,Partition,Submit,Eligible,Start,End,\\
ElapsedRaw,State,TimelimitRaw,AllocTRES,ReqTRES > history.txt"""
"""The command line of an admin (bash).

`SLURM_TIME_FORMAT=%s` prints times as seconds since 1970. Without it they are local times, which are read too, but an
hour is lost or gained where summer time begins or ends. `--duplicates` shows all runs of requeued jobs. GPUs are
counted only where slurm.conf has AccountingStorageTRES=gres/gpu. Columns of free text (JobName, Comment) must stay out:
sacct does not mark a bar within them.
"""


def read(path: Path) -> Trace:
    """The jobs of a site's history that have ended and held GPUs.

    `submit_s` is when the job was submitted and eligible, counted from the earliest job. `run_s` is the time it held
    its GPUs, all its runs together: sacct does not say how much of a run that was cut short had to be done again.
    Columns User, Partition, Eligible, ElapsedRaw or Elapsed, TimelimitRaw or Timelimit may be missing, and one of JobID
    and JobIDRaw and one of AllocTRES and ReqTRES. Raises `TraceError` for a file of another kind.
    """
    return FORMAT.read(path)


def _parse(table: Table) -> Trace:
    from simulation.traces.formats.sacct_history import read_history  # late: other formats do not need it

    past, rejected = read_history(table)
    first_s = min((job.arrival_s for job in past), default=0.0)
    jobs = (
        TraceJob(
            job_id=job.job_id,
            submit_s=job.arrival_s - first_s,
            gpus=job.gpus,
            run_s=job.held_s,
            time_limit_s=job.time_limit_s,
            user=job.user,
            queue=job.queue,
            line=job.line,
        )
        for job in past
    )
    return trace_of(jobs, rejected, FORMAT.name)


FORMAT = Format("sacct", REQUIRED, _parse)
