"""Writes what became of each job, for other people's tools."""

from __future__ import annotations

import csv
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

from sched_policy.simulator.outcome import JobRecord, Outcome


def write(outcome: Outcome, path: Path) -> None:
    """One line for each job, in the outcome's order: `JobRecord` field by field, then JCT and queueing delay.

    Raises `OSError` if the file cannot be written.
    """
    names = [entry.name for entry in fields(JobRecord)]
    cells = attrgetter(*names)
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow((*names, "jct_s", "queue_s"))
        table.writerows((*cells(job), job.end_s - job.submit_s, job.start_s - job.submit_s) for job in outcome.jobs)
