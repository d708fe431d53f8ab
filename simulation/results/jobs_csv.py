"""Writes what became of each job, for other people's tools."""

from __future__ import annotations

import csv
from pathlib import Path

from simulation.results.outcome import Ending, JobRecord, Outcome


def write(outcome: Outcome, path: Path) -> None:
    """One line for each job, in the outcome's order: `JobRecord` field by field, then `jct_s` and `queue_s`.

    Starts and delays are empty for jobs that never started, JCTs for those that have not ended. Raises `OSError` if the
    file cannot be written.
    """
    names = list(JobRecord.__struct_fields__)
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow((*names, "jct_s", "queue_s"))
        for job in outcome.jobs:
            cells = ["" if name == "start_s" and not job.started else getattr(job, name) for name in names]
            jct_s = "" if job.ending is Ending.UNFINISHED else job.end_s - job.submit_s
            table.writerow((*cells, jct_s, job.start_s - job.submit_s if job.started else ""))
