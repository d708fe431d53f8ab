"""What replays under Muri's conventions are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.muri_parity import main

HEADER = "job_id,num_gpu,submit_time,iterations,iteration_time,resource_time_0,resource_time_1,resource_time_2"
ORIGINAL = """
import csv, sys
[trace], [log] = ([a.split("=")[1] for a in sys.argv if a.startswith(name)] for name in ("--trace_file", "--log_path"))
with open(trace) as jobs, open(log + "/job.csv", "w") as out:
    print("submit_time,end_time", file=out)
    for _ in csv.DictReader(jobs):
        print("0,10", file=out)
"""
"""In the original's place: every job ends after 10 s."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "simulator").mkdir()
    (tmp_path / "simulator" / "run_sim.py").write_text(ORIGINAL)
    for name in ("trace1", "trace9"):
        (tmp_path / f"{name}.csv").write_text(f"{HEADER}\n0,1,0,100,1000,0,1000,0\n1,1,0,100,1000,0,1000,0\n")
    return tmp_path


def called(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["--traces", str(folder), "--json", *options])


def test_a_trace_without_published_figures_is_compared_with_the_original(folder: Path) -> None:
    done = called(folder, "--only", "trace9", "--policies", "srsf,themis", "--original", str(folder))
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["policy"], row["variant"], row["reference"]) for row in rows] == [
        ("srsf", "plain", "original"),
        ("themis", "plain", "original"),
    ]
    assert all(row["avg_jct_off_pct"] == pytest.approx(100 * (row["avg_jct_s"] / 10 - 1), abs=0.1) for row in rows)


def test_a_part_of_a_trace_is_never_compared_with_figures_of_the_whole(folder: Path) -> None:
    done = called(folder, "--only", "trace1", "--policies", "themis", "--first", "1", "--original", str(folder))
    assert done.exit_code == 0, done.output
    assert [(row["variant"], row["reference"]) for row in json.loads(done.stdout)["rows"]] == [("plain", "original")]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--only", "trace1,trace9"), "--only trace9 needs --original"),
        (("--only", "trace1", "--first", "1"), "--first needs --original"),
        ((), "no file trace1_pr.csv in"),
        (("--only", "trace1", "--policies", "srfs"), "nothing to do; policies: srtf, srsf"),
    ],
)
def test_what_cannot_be_compared_is_an_error(folder: Path, options: tuple[str, ...], why: str) -> None:
    done = called(folder, *options)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())
