"""Reading progress out of logs and JSON lines."""

import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from wrappers.follow import LogTail, Reading, Reporter, json_reader, log_reader

SXREPORT = [sys.executable, "-m", "wrappers.sxreport"]
SXRUN = [sys.executable, "-m", "wrappers.sxrun"]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's environment; returns its progress file."""
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(tmp_path / "progress"))
    for name in ("SLURM_RESTART_COUNT", "EXPLSCHED_CHECKPOINT", "EXPLSCHED_METRIC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "progress"


def reports(path: Path) -> list[tuple[object, object, object]]:
    if not path.exists():
        return []
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [(e["step"], e["metric"], e["value"]) for e in entries if "metric" in e]


def wait_for(path: Path, number: int) -> None:
    for _ in range(1500):
        if len(reports(path)) >= number:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path}: {reports(path)}")


@pytest.mark.parametrize(
    "line", [b"step 7, loss 0.5, lr 0.1", b"\x1b[32mstep\x1b[0m 7 loss \x1b[1m0.5\x1b[0m", b"{'step 7', 'loss 0.5'}"]
)
def test_punctuation_and_colours_are_no_part_of_a_number(line: bytes) -> None:
    assert log_reader(r"step (?P<step>\S+) .?loss (?P<loss>\S+)")(line) == Reading(7, {"loss": 0.5})


def test_lines_may_come_in_any_pieces(job: Path) -> None:
    reporter = Reporter(log_reader(r"step=(?P<step>\d+).*loss=(?P<value>\S+)"), "test")
    for piece in (b"st", b"ep=1 loss=0.5\nnoise\rstep=2", b" loss=0.25\r", b"step=3 loss=nan"):
        reporter.feed(piece)
    assert reports(job) == [(1, "loss", 0.5), (2, "loss", 0.25)]
    reporter.close()
    assert reports(job)[-1] == (3, "loss", None)


def test_a_value_is_of_the_jobs_metric(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_METRIC", "acc")
    Reporter(log_reader(r"(?P<step>\d+) (?P<value>\S+)"), "test").feed(b"1 0.5\n")
    Reporter(json_reader(), "test").feed(b'{"step": 2, "acc": 0.75}\n')
    Reporter(json_reader("s", "v", "named"), "test").feed(b'{"s": 3.0, "v": 1}\n')
    assert reports(job) == [(1, "acc", 0.5), (2, "acc", 0.75), (3, "named", 1.0)]


@pytest.mark.parametrize("metric", ["step", "total_steps", "params"])
def test_a_metric_may_have_the_name_of_a_field(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], metric: str
) -> None:
    monkeypatch.setenv("EXPLSCHED_METRIC", metric)
    Reporter(log_reader(r"(?P<step>\d+) (?P<value>\S+)"), "test").feed(b"1 0.5\n")
    assert reports(job) == [(1, metric, 0.5)]
    assert capsys.readouterr().err == ""


def test_that_steps_go_back_is_said_once(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where a log counts anew in each epoch, or fold: the scheduler takes none of a run that go back."""
    reporter = Reporter(log_reader(r"(?P<step>\d+) (?P<loss>\S+)"), "test")
    reporter.feed(b"1 0.5\n2 0.4\n2 0.4\n")
    assert capsys.readouterr().err == ""
    reporter.feed(b"1 0.3\n2 0.2\n1 0.1\n")
    told = capsys.readouterr().err
    assert told.count("steps of loss go back, from 2 to 1") == 1
    assert told.count("\n") == 1


def test_what_tells_nothing_is_passed_over(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(json_reader(), "test").feed(b'\n[]\n{"step": 1}\n{"loss": 1.0}\n{"step": 1, "loss": null}\n')
    assert reports(job) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "line", [b"no json\n", b'{"step": "x", "loss": 1}\n', b'{"step": 1, "loss": "y"}\n', b"\xff\n"]
)
def test_a_bad_log_cannot_flood_the_jobs_output(job: Path, line: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(json_reader(), "test").feed(line * 100)
    assert capsys.readouterr().err.count("test: no progress in") == 5


def test_a_line_without_end_does_not_fill_the_memory(job: Path) -> None:
    reporter = Reporter(json_reader(), "test")
    tracemalloc.start()
    for _ in range(64):
        reporter.feed(b"x" * 65536)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 4 * 65536
    reporter.feed(b'\n{"step": 1, "loss": 2.0}\n')
    assert reports(job) == [(1, "loss", 2.0)]


def test_a_tail_survives_truncation_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"of a former run\n")
    tail = LogTail(path)
    assert tail.read() == b""
    with path.open("ab") as file:
        file.write(b"new\n")
    assert tail.read() == b"new\n"
    path.write_bytes(b"short\n")
    assert tail.read() == b"short\n"
    path.write_bytes(b"begun anew, and longer\nhalf a line")
    assert tail.read() == b"begun anew, and longer\nhalf a line"
    path.write_bytes(b"its first line is half")
    assert tail.read() == b"its first line is half"
    with path.open("ab") as file:
        file.write(b" a line\n")
    assert tail.read() == b" a line\n"
    (tmp_path / "other").write_bytes(b"another file, and longer\n")
    (tmp_path / "other").rename(path)
    assert tail.read() == b"another file, and longer\n"
    assert LogTail(path, from_start=True).read() == b"another file, and longer\n"


def test_a_file_that_was_seen_to_be_gone_is_another_one_afterwards(tmp_path: Path) -> None:
    """File systems give an inode out again at once: here a file is moved away, and written over, so that it has it."""
    path, elsewhere = tmp_path / "metrics.csv", tmp_path / "elsewhere"
    path.write_bytes(b"step,loss\n1,2.0\n")
    tail = LogTail(path, from_start=True)
    assert tail.read() == b"step,loss\n1,2.0\n"
    path.rename(elsewhere)
    assert tail.read() == b""
    elsewhere.write_bytes(b"step,loss\n5,1.0\n")
    elsewhere.rename(path)
    assert tail.read() == b"step,loss\n5,1.0\n"
    assert tail.is_at_start


def test_of_a_log_that_is_rotated_each_metric_goes_on_by_itself(job: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = log_reader(r"(?P<step>\d+) (loss=(?P<loss>\S+)|acc=(?P<acc>\S+))")
    reporter, tail = Reporter(reader, "test"), LogTail(path)
    path.write_bytes(b"1 acc=0.1\n2 loss=0.5\n")
    assert tail.pass_on(reporter)
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"2 loss=0.5\n2 acc=0.2\n")
    assert tail.pass_on(reporter)
    assert reports(job) == [(1, "acc", 0.1), (2, "loss", 0.5), (2, "acc", 0.2)]


def test_a_log_that_grows_by_more_than_one_read_between_two_looks_is_kept_up_with(job: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    reporter, tail = Reporter(log_reader(r"step=(?P<step>\d+) loss=(?P<value>\S+)"), "test"), LogTail(path)
    path.write_bytes(b"nothing\n" * (3 << 17) + b"step=1 loss=0.5\n")
    looks = []

    def ended() -> bool:
        looks.append(job.read_bytes().count(b"\n") if job.exists() else 0)
        return len(looks) == 2

    tail.follow(reporter, ended)
    assert looks == [0, 1]


def test_sxreport_follows_until_the_process_ends(job: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    training = subprocess.Popen(["sleep", "60"])
    regex = r"step=(?P<step>\d+) loss=(?P<value>\S+)"
    following = subprocess.Popen(
        [*SXREPORT, "--follow", str(log), "--regex", regex, "--from-start", "--pid", str(training.pid)]
    )
    log.write_text("step=1 loss=0.5\n")
    wait_for(job, 1)
    with log.open("a") as file:
        file.write("step=2 loss=0.25")
    training.terminate()  # not yet waited for: a zombie has ended, too
    assert following.wait(timeout=60) == 0
    training.wait()
    assert reports(job) == [(1, "loss", 0.5), (2, "loss", 0.25)]


def test_sxreport_follows_json_lines_until_sigterm(job: Path, tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"global_step": 1, "eval": 0.5}\n')
    argv = [*SXREPORT, "--jsonl", str(log), "--step-key", "global_step", "--value-key", "eval", "--from-start"]
    following = subprocess.Popen(argv)
    wait_for(job, 1)
    following.terminate()
    assert following.wait(timeout=60) == 0
    assert reports(job) == [(1, "eval", 0.5)]


def test_sxreport_follows_though_the_jobs_checkpoint_signal_is_unknown(job: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1 0.5\n")
    argv = [*SXREPORT, "--follow", str(log), "--regex", r"(?P<step>\d+) (?P<loss>\S+)", "--from-start", "--pid"]
    environment = os.environ | {"EXPLSCHED_CHECKPOINT": "NONE"}
    ended = subprocess.run([*argv, "999999999"], env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr.startswith("sxreport: EXPLSCHED_CHECKPOINT: checkpoint signal 'NONE'")
    assert reports(job) == [(1, "loss", 0.5)]


def test_sxreport_ends_with_the_job_script(job: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1 0.5\n")
    script = tmp_path / "job.sh"
    script.write_text('"$@" &\nread -r line\n')
    follow = [*SXREPORT, "--from-start", "--follow", str(log), "--regex", r"(?P<step>\d+) (?P<value>\S+)"]
    with subprocess.Popen(["sh", str(script), *follow], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        wait_for(job, 1)
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.close()
        assert running.stdout.read() == b""  # at its end once the follower has ended, too


@pytest.mark.parametrize(
    "arguments",
    [
        ["--follow", "x"],
        ["--follow", "x", "--regex", "("],
        ["--jsonl", "x", "--pid", "0"],
        ["--jsonl", "x", "--pid", "99999999999"],
    ],
)
def test_sxreport_refuses_what_it_cannot_follow(arguments: list[str]) -> None:
    done = subprocess.run([*SXREPORT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sxreport: error:" in done.stderr


def test_sxrun_reads_json_lines(job: Path, tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 9, "loss": 9}\n')
    command = f'echo \'{{"step": 1, "loss": 0.5}}\' >> {log}; echo output'
    argv = [*SXRUN, "--metrics-jsonl", str(log), "--", "sh", "-c", command]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "output\n"
    assert reports(job) == [(1, "loss", 0.5)]
    events = [json.loads(line).get("event") for line in job.read_text().splitlines()]
    assert events == ["start", None, "end"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--log-regex", "("], "--log-regex: '(': missing ), unterminated subpattern"),
        (["--log-regex", "step"], "--log-regex: 'step' needs a group named step"),
        (["--total-steps", "-5"], "argument --total-steps: found '-5', accepted are whole numbers from 1 on"),
        (["--total-steps", "many"], "argument --total-steps: found 'many', accepted are whole numbers from 1 on"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], words: str) -> None:
    done = subprocess.run([*SXRUN, *arguments, "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(("regex", "words"), [("(", "--regex: '(': missing )"), ("a", "--regex: 'a' needs a group")])
def test_sxreport_names_its_own_option(regex: str, words: str) -> None:
    argv = [*SXREPORT, "--follow", "log", "--regex", regex]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"error: {words}" in done.stderr
