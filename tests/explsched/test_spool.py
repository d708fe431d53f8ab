"""Users' own directories in the spool, with real uids; a spool that is full, gone or hangs; files without end."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from explsched import progress, spool
from explsched.spool import Writer

ADA, BOB, DAEMON = 20001, 20002, 20003
"""Uids that nobody has: files and processes need no name."""

REPORT = "import os; from explsched import report; report(step=1, loss=0.5)"


@pytest.fixture
def open_spool(open_tmp: Path) -> Path:
    """A spool as an admin makes it, in a directory that every user can reach."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as several users")
    path = open_tmp / f"spool-{time.monotonic_ns()}"
    path.mkdir()
    os.chown(path, 0, DAEMON)
    path.chmod(spool.MODE)
    return path


def as_user(uid: int, argv: list[str], where: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EXPLSCHED_SPOOL": str(where), "SLURM_JOB_ID": "42", **more}
    return subprocess.run(
        argv,
        env=environment,
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def report_as(uid: int, where: Path, code: str = REPORT) -> str:
    """Report from a process of that user, forked because the user may not read our source files."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writer, 2)
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.environ |= {"EXPLSCHED_SPOOL": str(where), "SLURM_JOB_ID": "42"}
            exec(code)  # noqa: S102
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_the_owner_and_the_daemon_read_and_nobody_else(open_spool: Path, umask: int) -> None:
    assert report_as(ADA, open_spool, f"import os; os.umask({umask}); " + REPORT) == ""
    path = open_spool / str(ADA) / "42.jsonl"
    assert json.loads(path.read_text())["step"] == 1
    assert (path.parent.stat().st_uid, path.parent.stat().st_gid) == (ADA, DAEMON)
    assert as_user(ADA, ["cat", str(path)], open_spool).returncode == 0
    assert as_user(DAEMON, ["cat", str(path)], open_spool).returncode == 0
    assert as_user(BOB, ["cat", str(path)], open_spool).returncode != 0
    assert as_user(BOB, ["ls", str(path.parent)], open_spool).returncode != 0
    assert as_user(BOB, ["rm", "-rf", str(path.parent)], open_spool).returncode != 0
    assert path.exists()


@pytest.mark.parametrize("trap", ["directory", "file", "link", "fifo"])
def test_a_name_that_somebody_else_has_taken_keeps_nobody_from_reporting(open_spool: Path, trap: str) -> None:
    name = open_spool / str(ADA)
    taken = {
        "directory": ["mkdir", "-m", "777", str(name)],
        "file": ["touch", str(name)],
        "link": ["ln", "-s", "/var", str(name)],
        "fifo": ["mkfifo", str(name)],
    }
    assert as_user(BOB, taken[trap], open_spool).returncode == 0
    assert [report_as(ADA, open_spool) for _ in range(2)] == ["", ""]
    (own,) = [path for path in open_spool.iterdir() if path.lstat().st_uid == ADA]
    assert own.name.startswith(f"{ADA}-")
    assert len((own / "42.jsonl").read_text().splitlines()) == 2
    assert not list(name.glob("*")) if trap == "directory" else True


@pytest.mark.parametrize(("owner", "looked_at"), [(0, set()), (BOB, {"0-"})])
def test_whoever_fills_the_spool_with_directories_holds_up_no_reports(
    open_spool: Path, monkeypatch: pytest.MonkeyPatch, owner: int, looked_at: set[str]
) -> None:
    """600,000 of them took longer than a training waits for its spool."""
    for name in ("0", "0-0000000b", "1-0000000a", "7"):
        (open_spool / name).mkdir()
        os.chown(open_spool / name, BOB, BOB)
    os.chown(open_spool / "0", owner, -1)
    seen: list[str] = []

    @contextmanager
    def listed(directory: int) -> Iterator[list[SimpleNamespace]]:
        def entry(found: os.DirEntry[str]) -> SimpleNamespace:
            def status(*, follow_symlinks: bool) -> os.stat_result:
                seen.append(found.name)
                return found.stat(follow_symlinks=follow_symlinks)

            return SimpleNamespace(name=found.name, stat=status)

        with really(directory) as entries:
            yield [entry(found) for found in entries]

    really = os.scandir
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", listed)
        Writer(open_spool / "42.jsonl", open_spool).append([b"{}\n"])
    assert len(list(open_spool.glob("0*/42.jsonl"))) == 1
    assert {name[:2] for name in seen} == looked_at


def test_a_link_of_ones_own_is_not_followed(open_spool: Path) -> None:
    target = open_spool.with_name(open_spool.name + "-target")
    target.mkdir()
    os.chown(target, ADA, ADA)
    assert as_user(ADA, ["ln", "-s", str(target), str(open_spool / str(ADA))], open_spool).returncode == 0
    report_as(ADA, open_spool)
    assert list(target.iterdir()) == []


def test_a_file_that_is_not_there_yet_is_empty_and_no_fault(
    open_spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a requeued job starts on another node, and each has a spool of its own."""
    writer = Writer(open_spool / "7.jsonl", open_spool)
    assert writer.written() == b""
    writer.append([b"{}\n"])
    assert writer.written() == b"{}\n"
    assert capsys.readouterr().err == ""


def test_in_a_spool_of_a_former_release_the_files_lie_in_the_spool_itself(open_spool: Path) -> None:
    os.chown(open_spool, 0, 0)
    open_spool.chmod(0o1777)
    assert report_as(ADA, open_spool) == ""
    path = open_spool / "42.jsonl"
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (ADA, 0o644)


def test_a_job_that_runs_while_the_spool_is_changed_keeps_its_file(open_spool: Path) -> None:
    open_spool.chmod(0o1777)
    report_as(ADA, open_spool)
    open_spool.chmod(spool.MODE)
    report_as(ADA, open_spool)
    assert len((open_spool / "42.jsonl").read_text().splitlines()) == 2
    as_user(BOB, ["touch", str(open_spool / "43.jsonl")], open_spool)  # taken by somebody else
    report_as(ADA, open_spool, "import os; os.environ['SLURM_JOB_ID'] = '43'; " + REPORT)
    assert (open_spool / str(ADA) / "43.jsonl").exists()


@pytest.fixture
def small_disk(open_spool: Path) -> Iterator[Path]:
    """A spool on a disk of 64 KiB."""
    options = f"size=64k,mode={spool.MODE:o},gid={DAEMON}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(open_spool)], check=False).returncode:
        pytest.skip("may not mount a file system here")
    yield open_spool
    subprocess.run(["umount", "--lazy", str(open_spool)], check=True)


def test_a_full_disk_is_told_once_and_reports_go_on_when_there_is_room(
    small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "RETRY_S", 0.0)
    writer = Writer(small_disk / "42.jsonl", small_disk)
    writer.append([b'{"step": 1}\n'], "loss")
    path = small_disk / str(os.geteuid()) / "42.jsonl"
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 12))
    long_line = b"#" * 4000 + b"\n"
    for _ in range(3):
        writer.append([long_line, long_line], "loss")
    assert capsys.readouterr().err.count("progress is not reported") == 1
    filler.unlink()
    writer.append([b'{"step": 2}\n'], "loss")
    lines = path.read_bytes().splitlines()
    assert (lines[0], lines[-1]) == (b'{"step": 1}', b'{"step": 2}')  # however the lines between came off


def test_after_a_failure_reports_wait_and_events_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "absent"
    writer = Writer(where / "42.jsonl", where)
    writer.append([b"1\n"], "loss")
    where.mkdir()
    writer.append([b"2\n"], "loss")  # within the time in which nothing is tried
    assert list(where.iterdir()) == []
    writer.append([b"3\n"])
    writer.append([b"4\n"], "loss")
    assert (where / "42.jsonl").read_bytes() == b"3\n4\n"
    assert capsys.readouterr().err.count("explsched:") == 1


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, no file named 42.jsonl can be opened in this process: its file system hangs."""
    answers, this, really = threading.Event(), os.getpid(), os.open

    def slow(path: str | Path, *arguments: Any, **options: Any) -> int:
        if os.getpid() == this and str(path).endswith("42.jsonl"):
            answers.wait()
        return really(path, *arguments, **options)

    monkeypatch.setattr(os, "open", slow)
    return answers


def test_a_file_system_that_hangs_does_not_hold_up_the_training(
    tmp_path: Path, answers: threading.Event, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spool, "PATIENCE_S", 0.05)
    path = tmp_path / "42.jsonl"
    writer = Writer(path)
    for number in range(100):
        writer.append([b"%d\n" % number], "loss")  # returns
    assert capsys.readouterr().err.count("has not answered") == 1
    monkeypatch.setattr(spool, "PATIENCE_S", 60.0)
    answers.set()
    while not path.exists() or not path.read_bytes().endswith(b"last\n"):
        writer.append([b"last\n"], "loss")
        time.sleep(0.01)
    assert path.read_bytes() == b"0\nlast\n"


def test_where_no_thread_can_be_started_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "42.jsonl"
    writer = Writer(path)
    with monkeypatch.context() as limited:
        limited.setattr("_thread.start_new_thread", refuse)
        writer.append([b"lost\n"], "loss")
        assert writer.written() == b""
    writer.append([b"kept\n"], "loss")
    assert path.read_bytes() == b"kept\n"
    assert capsys.readouterr().err.count("can't start new thread") == 1


def test_a_long_file_grows_slowly_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "42.jsonl"
    path.write_bytes(b"\n" * (spool.THIN_FROM_BYTES + 1))
    writer = Writer(path)
    for _ in range(50):
        writer.append([b"report\n"], "loss")
    writer.append([b"event\n"])
    assert path.read_bytes().strip().split() == [b"report", b"report", b"event"]
    os.truncate(path, spool.MOST_BYTES + 1)
    writer.append([b"event\n"])
    assert path.stat().st_size == spool.MOST_BYTES + 1
    assert "longer than 64 MiB" in capsys.readouterr().err


def test_a_long_file_has_of_each_metric_that_is_reported_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "42.jsonl"
    path.write_bytes(b"\n" * (spool.THIN_FROM_BYTES + 1))
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(path))
    for step in range(5):
        progress.report(step=step, loss=1.0)
        progress.report(step=step, accuracy=0.5)
        progress.report_values(step, {"f1": 0.5, "recall": 0.5})
    told = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert [(line["metric"], line["step"]) for line in told] == [("loss", 0), ("accuracy", 0), ("f1", 0), ("recall", 0)]


def test_a_forked_process_reports_although_its_parent_was_reporting(
    tmp_path: Path, answers: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "42.jsonl"
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(path))
    monkeypatch.setattr(spool, "PATIENCE_S", 0.05)
    progress.report(step=1, loss=1.0)  # a thread goes on with it
    child = os.fork()
    if child == 0:
        try:
            progress.report(step=2, loss=1.0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2]
    answers.set()


def test_in_a_long_file_what_was_withheld_last_comes_with_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\n" * (spool.THIN_FROM_BYTES + 1))
    writer = Writer(path)
    for line, about in ((b"1", "loss"), (b"2", "loss"), (b"3", "acc"), (b"4", "loss"), (b"5", "acc")):
        writer.append([line + b"\n"], about)
    assert path.read_bytes().split() == [b"1", b"3"]
    writer.append([b"end\n"])
    assert path.read_bytes().split() == [b"1", b"3", b"4", b"5", b"end"]
    for line, about in ((b"6", "loss"), (b"7", "loss f1")):  # the newer one has what is withheld
        writer.append([line + b"\n"], about)
    writer.append([b"start\n"])
    assert path.read_bytes().split()[5:] == [b"7", b"start"]


def test_in_a_long_file_the_last_step_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\n" * (spool.THIN_FROM_BYTES + 1))
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(path))
    for step in range(11):
        progress.report(step=step, loss=1.0, total_steps=10)
    assert [json.loads(line)["step"] for line in path.read_bytes().split(b"\n") if line] == [0, 8, 9, 10]
