"""The table of jobs for other people's tools."""

import csv
from math import nan
from pathlib import Path

from msgspec.structs import replace

from simulation.results.outcome import Ending, write_jobs_csv
from tests.simulation.results.outcomes import outcome, record


def test_every_job_is_a_line(tmp_path: Path) -> None:
    first = replace(record(1, 10, 30, 100, 2, preemptions=1), user='a,"b"', ending=Ending.STOPPED, gain=0.25)
    write_jobs_csv(outcome(first, record(2, 20, 20, 50)), tmp_path / "jobs.csv")
    with (tmp_path / "jobs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2
    assert rows[0] == {
        "job_id": "1",
        "submit_s": "10",
        "start_s": "30",
        "end_s": "100",
        "gpus": "2",
        "run_s": "70",
        "held_s": "70",
        "preemptions": "1",
        "user": 'a,"b"',
        "ending": "stopped",
        "gain": "0.25",
        "held_gpu_s": "",
        "lost_gpu_s": "0.0",
        "done_s": "",
        "jct_s": "90",
        "queue_s": "20",
    }
    assert (rows[1]["gain"], rows[1]["queue_s"]) == ("", "0")


def test_what_has_not_happened_is_empty(tmp_path: Path) -> None:
    never = replace(record(1, 10, 10, 100), start_s=nan, ending=Ending.UNFINISHED)
    write_jobs_csv(outcome(never), tmp_path / "jobs.csv")
    with (tmp_path / "jobs.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["start_s"], row["jct_s"], row["queue_s"], row["ending"]) == ("", "", "", "unfinished")
