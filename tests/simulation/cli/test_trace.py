"""`sexplsched trace`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from explsched.cli import root
from explsched.errors import ExplschedError
from simulation.traces.formats import own, read_any, sacct
from simulation.traces.trace import ClusterShape

TRACE = (
    "job_id,submit_s,gpus,run_s,user,queue,time_limit_s\n"
    "1,0,8,3600,ada,main,7200\n"
    "2,100,0,10,bob,main,\n"
    "3,7200,4,7200,ada,main,\n"
    "4,7200,64,1,ada,main,\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, ["trace", *map(str, arguments)])


def test_help_names_the_formats_and_how_to_make_a_history() -> None:
    output = call("--help").output
    assert all(f"`{name}`" in output for name in ("own", "muri", "philly", "sacct"))
    printed = [line.strip() for line in output.splitlines()]
    assert all(line.strip() in printed for line in sacct.COMMAND.splitlines())


@pytest.mark.parametrize("command", ["summary", "convert", "generate"])
def test_every_command_has_help(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_summary_shows_jobs_load_and_rejected_rows(file: Path) -> None:
    result = call("summary", file, "--cluster", "2x4")
    assert result.exit_code == 0
    assert result.output == (
        "format     own\n"
        "jobs       2 (0 with stages, 1 with a limit)\n"
        "submitted  within 02:00:00\n"
        "work       16 GPU hours\n"
        "run time   median 01:30:00, mean 01:30:00, longest 02:00:00\n"
        "gang       4 GPUs: 1, 8 GPUs: 1\n"
        "owners     1 users, 1 queues\n"
        "load       1 on 2x4 (8 GPUs)\n"
        "left out   2 rows (gpus 2)\n"
        "line 3: gpus: found '0', accepted: whole numbers from 1 to 1,000,000\n"
        "line 5: gpus: job 4 asks for 64, accepted: up to 8 (2 nodes with 4 GPUs)\n"
    )


def test_summary_as_json(file: Path) -> None:
    found = json.loads(call("summary", file, "--json", "--cluster", "2x4", "--rejected", "1").output)
    assert found["source_format"] == "own"
    assert (found["jobs"], found["span_s"], found["work_gpu_s"]) == (2, 7200, 57_600)
    assert found["gpus"] == [{"gpus": 4, "jobs": 1}, {"gpus": 8, "jobs": 1}]
    assert (found["cluster"], found["load"]) == ({"nodes": 2, "gpus_per_node": 4}, 1.0)
    assert (found["rejected"], [row["line"] for row in found["rejected_rows"]]) == (2, [3])


def test_summary_counts_the_jobs_that_waited_for_others(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    rows = ("1|0|0|0|900", "2|0|900|900|960", "3|5|6|960|990")
    path.write_text("JobID|Submit|Eligible|Start|End|State|AllocTRES\n" + "".join(
        f"{row}|COMPLETED|gres/gpu=1\n" for row in rows
    ))  # fmt: skip
    found = call("summary", path).output
    assert "held back  1 jobs (--dependency, --begin, ...) come when they did then\n" in found
    assert json.loads(call("summary", path, "--json").output)["held_back"] == 1


def test_summary_tells_where_jobs_are_left_from_an_earlier_time(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    header, row = "JobID|Submit|Start|End|State|AllocTRES\n", "{n}|{at}|{at}|90000|COMPLETED|gres/gpu=1\n"
    steady = "".join(row.format(n=n, at=50_000 + 100 * n) for n in range(1, 100))
    path.write_text(header + row.format(n=100, at=0) + steady)
    words = "1.0% of the jobs in the first tenth of that time: left from before?"
    assert words in call("summary", path).output
    path.write_text(header + steady)
    assert "left from before" not in call("summary", path).output


def test_strict_makes_rejected_rows_fatal(file: Path) -> None:
    for command in (("summary", file), ("convert", file, "-")):
        result = call(*command, "--strict")
        assert result.exit_code == 1
        assert isinstance(result.exception, ExplschedError)
        assert "trace.csv: 1 rows cannot be used: line 3: gpus: found '0'" in str(result.exception)


def test_convert_writes_our_own_format(file: Path, tmp_path: Path) -> None:
    history = tmp_path / "history.txt"
    history.write_text("JobID|Submit|Start|End|State|AllocTRES\n7_1|50|60|90|COMPLETED|gres/gpu=2\n8|1|1|1|FAILED|\n")
    result = call("convert", history, tmp_path / "out.csv")
    assert (result.stdout, result.stderr) == (
        f"1 jobs written to {tmp_path / 'out.csv'}\n",
        "1 rows left out, see `sexplsched trace summary`\n",
    )
    (job,) = own.read(tmp_path / "out.csv").jobs
    assert (job.job_id, job.submit_s, job.gpus, job.run_s) == (9, 0, 2, 30)


def test_convert_to_the_standard_output_prints_nothing_else_there(file: Path, tmp_path: Path) -> None:
    result = call("convert", file, "-", "--cluster", "2x4")
    (tmp_path / "again.csv").write_text(result.stdout)
    assert [job.job_id for job in read_any(tmp_path / "again.csv", "own").jobs] == [1, 3]
    assert "2 jobs written" in result.stderr


def test_convert_warns_of_what_its_format_has_no_room_for(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.csv"
    sweep.write_text("job_id,submit_s,gpus,run_s,sweep,curve\n1,0,1,10,s,1:5:1 2:6:1\n")
    assert "curves: those of 1 jobs are lost" in call("convert", sweep, "-").stderr


def test_the_standard_output_by_another_name_stays_what_it_is(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "stdout"  # as /dev/stdout, which root could replace
    link.symlink_to("/proc/self/fd/1")
    with (tmp_path / "out.csv").open("wb") as out:
        command = [sys.executable, "-m", "explsched.cli", "trace", "convert", str(file), str(link)]
        subprocess.run(command, stdout=out, check=True, cwd=Path(__file__).parents[3])
    assert link.is_symlink()
    assert own.read(tmp_path / "out.csv").jobs == read_any(file).jobs


def test_a_trace_is_not_converted_in_place(file: Path) -> None:
    """The rows that cannot be used, and what our own format has no room for, would be lost."""
    before = file.read_bytes()
    result = call("convert", file, file)
    assert result.exit_code == 2
    assert "'FILE' and 'OUT' are the same file" in result.stderr
    assert file.read_bytes() == before


def test_generate_makes_the_load_that_was_asked_for(tmp_path: Path) -> None:
    out = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path, seed in zip(out, ("1", "1", "2"), strict=True):
        result = call("generate", path, "--jobs", "300", "--seed", seed, "--load", "1.5", "--cluster", "2x4")
        assert result.output == f"300 jobs written to {path}\n"
    assert out[0].read_text() == out[1].read_text() != out[2].read_text()
    found = json.loads(call("summary", out[0], "--json", "--cluster", "2x4").output)
    assert found["load"] == pytest.approx(1.5, rel=1e-6)
    assert max(job.gpus for job in own.read(out[0]).jobs) == ClusterShape(2, 4).gpus


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("summary", "{file}", "--format", "xml"), "'own', 'sweep', 'muri', 'philly', 'sacct'"),
        (("generate", "-", "--jobs", "0", "--seed", "1"), "range x>=1"),
        (("generate", "-", "--jobs", "5"), "Missing option '--seed'"),
        (("summary",), "Missing argument 'FILE'"),
        (("convert", "{file}", "/nowhere/out.csv"), "directory /nowhere does not exist"),
    ],
)
def test_wrong_usage(file: Path, arguments: tuple[str, ...], words: str) -> None:
    result = call(*(argument.format(file=file) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("summary", "/nowhere.csv"), "/nowhere.csv: No such file"),
        (("summary", "{file}", "--format", "philly"), "header lacks timestamp"),
        (("summary", "{file}", "--cluster", "8"), "cluster '8': neither a shape nor a file"),
        (("generate", "-", "--jobs", "5", "--seed", "1", "--load", "0"), "load is 0, accepted: "),
    ],
)
def test_what_cannot_be_done_is_named(file: Path, arguments: tuple[str, ...], words: str) -> None:
    result = call(*(argument.format(file=file) for argument in arguments))
    assert result.exit_code == 1
    assert isinstance(result.exception, ExplschedError)
    assert words in str(result.exception)
