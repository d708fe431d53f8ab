"""Progress files are in a directory in which users may put anything."""

import errno
import itertools
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explsched.spool import open_directory
from sched_policy.model import ProgressPoint
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.observation.progress import MAX_REPORTS, JobProgress, fold
from slurm_plugin.observation.spool import (
    MALFORMED_COUNTS_BYTES,
    MAX_BYTES_PER_READ,
    MOST_DIRECTORIES,
    MOST_MALFORMED,
    ProgressSpool,
    WholeProgressSpool,
)
from tests.slurm_plugin.observation.test_progress import NOW_S, line


@pytest.fixture
def spool(tmp_path: Path) -> ProgressSpool:
    return ProgressSpool(tmp_path)


def read(spool: ProgressSpool, job_id: int = 7) -> JobProgress:
    return spool.read({job_id: os.geteuid()}, NOW_S).get(job_id, JobProgress())


def test_only_what_is_new_is_read_and_half_a_line_waits(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text(line(1, 2.0) + line(2, 1.0)[:-5])
    assert [r.step for r in read(spool).reports] == [1]
    with path.open("a") as file:
        file.write(line(2, 1.0)[-5:])
    assert [r.step for r in read(spool).reports] == [1, 2]
    assert read(spool).malformed == 0


def test_a_curve_stays_the_same_tuple_until_something_new_is_read(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text(line(1, 2.0) + line(11, 1.0) + line(11, 0.5, metric="accuracy"))
    points = read(spool).points("loss", 2)
    assert points == (ProgressPoint(1, 0.0, 2.0), ProgressPoint(11, 20.0, 1.0))
    assert read(spool).points("loss", 2) is points
    assert read(spool).points("accuracy", 1) == (ProgressPoint(11, 10.0, 0.5),)
    with path.open("a") as file:
        file.write(line(21, 0.5))
    assert read(spool).points("loss", 2) == (*points, ProgressPoint(21, 40.0, 0.5))


def test_what_a_job_reported_that_is_gone_is_forgotten(spool: ProgressSpool, tmp_path: Path) -> None:
    (tmp_path / "7.jsonl").write_text(line(1, 2.0))
    points = read(spool).points("loss", 1)
    assert spool.read({}, NOW_S) == {}
    again = read(spool).points("loss", 1)
    assert again == points
    assert again is not points  # it was read anew


def test_a_file_of_somebody_else_is_refused(spool: ProgressSpool, tmp_path: Path) -> None:
    (tmp_path / "7.jsonl").write_text(line(1, 2.0))
    progress = spool.read({7: os.geteuid() + 1}, NOW_S)[7]
    assert progress.reports == ()
    assert progress.refused is not None
    assert "owned by" in progress.refused


def test_a_symlink_a_directory_and_a_fifo_are_refused(spool: ProgressSpool, tmp_path: Path) -> None:
    (tmp_path / "real").write_text(line(1, 2.0))
    (tmp_path / "7.jsonl").symlink_to(tmp_path / "real")
    (tmp_path / "8.jsonl").mkdir()
    os.mkfifo(tmp_path / "9.jsonl")
    found = spool.read(dict.fromkeys((7, 8, 9), os.geteuid()), NOW_S)
    assert all(found[job].refused and not found[job].reports for job in (7, 8, 9))


def test_a_missing_spool_is_no_error(tmp_path: Path) -> None:
    assert ProgressSpool(tmp_path / "none").read({7: 0}, NOW_S) == {}


def test_a_spool_that_is_no_longer_mounted_keeps_what_was_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Trainings that are nearly done counted by their time limits from then on, and were preempted."""
    mounted, away = tmp_path / "progress", tmp_path / "away"
    mounted.mkdir()
    spool = ProgressSpool(mounted)
    (mounted / "7.jsonl").write_text(line(1, 2.0))
    before = read(spool)
    mounted.rename(away)
    assert read(spool) is read(spool) is before
    mounted.mkdir()
    assert read(spool) is read(spool) is before
    assert [r.getMessage() for r in caplog.records] == [
        f'progress not read, the last holds spool="{mounted}" why="No such file or directory"',
        f'progress not read, the last holds spool="{mounted}" '
        'why="it is another directory than before: unmounted, or mounted again?"',
    ]
    (mounted / "8.jsonl").write_text(line(3, 2.0))  # whoever has made it anew needs no reload
    assert [r.step for r in read(spool, 8).reports] == [3]


def test_what_was_read_of_a_file_that_is_gone_holds_for_its_job(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text(line(1, 2.0))
    before = read(spool)
    path.unlink()
    assert read(spool) is before
    assert spool.read({7: os.geteuid()}, NOW_S, {7: NOW_S + 1.0}) == {}  # another job has its number
    path.write_text(line(2, 2.0))
    assert [r.step for r in read(spool).reports] == [2]


def test_a_huge_file_is_read_in_parts_and_thinned(spool: ProgressSpool, tmp_path: Path) -> None:
    (tmp_path / "7.jsonl").write_text(
        "".join(json.dumps({"time_s": i, "step": i, "metric": "loss", "value": 1 / i}) + "\n" for i in range(1, 40001))
    )
    for _ in range(30):
        progress = read(spool)
    assert len(progress.reports) <= MAX_REPORTS
    assert (progress.reports[0].step, progress.reports[-1].step) == (1, 40000)
    assert progress.malformed == 0


def test_a_command_reads_files_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_WHOLE_LOOK", 1500)
    for job_id in range(5):
        (tmp_path / f"{job_id}.jsonl").write_text("".join(line(step, 2.0) for step in range(100)) + line(100, 1.0)[:9])
    found = WholeProgressSpool(tmp_path).read(dict.fromkeys(range(5), os.geteuid()), NOW_S)
    assert [len(found[job_id].reports) for job_id in range(5)] == [100] * 5


def test_a_command_gives_up_on_a_file_system_that_no_longer_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, really = [], BoundedCall.run

    def slower(calls: BoundedCall, call: Callable[[], None]) -> bool:
        looks.append(really(calls, call))
        return len(looks) == 1

    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_WHOLE_LOOK", 1500)
    monkeypatch.setattr(BoundedCall, "run", slower)
    (tmp_path / "7.jsonl").write_text("".join(line(step, 2.0) for step in range(100)))
    WholeProgressSpool(tmp_path).read({7: os.geteuid()}, NOW_S)
    assert len(looks) == 2


def test_many_bad_files_leave_a_command_the_time_for_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that takes too long is given up, and what it has read is lost. Short lines take long for their bytes."""
    limit, taken, really = 1 << 15, list[int](), BoundedCall.run

    def look(calls: BoundedCall, call: Callable[[], None]) -> bool:
        taken.append(0)
        return really(calls, call)

    def counted(progress: JobProgress, lines: list[bytes], *rest: Any) -> JobProgress:
        taken[-1] += len(lines)
        return fold(progress, lines, *rest)

    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_WHOLE_LOOK", limit)
    monkeypatch.setattr("slurm_plugin.observation.spool.fold", counted)
    monkeypatch.setattr(BoundedCall, "run", look)
    for job_id in range(32):
        (tmp_path / f"{job_id}.jsonl").write_bytes(b"x\n" * 2048)
    (tmp_path / "32.jsonl").write_text(line(1, 2.0))
    found = WholeProgressSpool(tmp_path).read(dict.fromkeys(range(33), os.geteuid()), NOW_S)
    assert [found[job_id].malformed for job_id in range(32)] == [2048] * 32
    assert len(found[32].reports) == 1
    assert max(taken) <= limit / MALFORMED_COUNTS_BYTES + 2048


def test_a_file_that_was_given_up_is_refused_although_another_takes_more_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_WHOLE_LOOK", 1500)
    monkeypatch.setattr("slurm_plugin.observation.spool.MOST_MALFORMED", 10)
    (tmp_path / "1.jsonl").write_text(line(1, 2.0) + "x\n" * 11)
    (tmp_path / "2.jsonl").write_text("".join(line(step, 2.0) for step in range(100)))
    found = WholeProgressSpool(tmp_path).read(dict.fromkeys((1, 2), os.geteuid()), NOW_S)
    assert len(found[2].reports) == 100
    assert "too many malformed lines" in (found[1].refused or "")


def test_a_users_bad_files_take_no_more_of_a_look_than_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written anew each time, sixteen of them took all that a look may read, and no other user's file was read."""
    limit = 1 << 15
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_USER", limit)
    for job_id in range(32):
        (tmp_path / f"{job_id}.jsonl").write_bytes(b"x\n" * 2048)
    spool, owners = ProgressSpool(tmp_path), dict.fromkeys(range(32), os.geteuid())
    malformed = [sum(one.malformed for one in spool.read(owners, NOW_S).values()) for _ in range(4)]
    taken = [now - before for before, now in itertools.pairwise([0, *malformed])]
    assert all(0 < lines <= limit / MALFORMED_COUNTS_BYTES + 2048 for lines in taken)


def test_a_command_does_not_wait_for_the_ends_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do half lines, which are read again and again, keep it from the user's other files."""
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_WHOLE_LOOK", 300)
    for job_id in range(10):
        (tmp_path / f"{job_id}.jsonl").write_text(line(1, 2.0) + line(2, 1.0)[:-5])
    found = WholeProgressSpool(tmp_path).read(dict.fromkeys(range(10), os.geteuid()), NOW_S)
    assert [len(found[job_id].reports) for job_id in range(10)] == [1] * 10


def test_a_command_opens_each_file_once_and_one_more_for_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opened every file in each look, of which each read a little."""
    opened, really = [], os.open

    def opens(path: str | Path, flags: int, *mode: int, **options: Any) -> int:
        opened.append(str(path))
        return really(path, flags, *mode, **options)

    text = "".join(line(step, 2.0) for step in range(100))
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_WHOLE_LOOK", 2 * len(text) + 10)
    for job_id in range(100):
        (tmp_path / f"{job_id}.jsonl").write_text(text)
    monkeypatch.setattr(os, "open", opens)
    found = WholeProgressSpool(tmp_path).read(dict.fromkeys(range(100), os.geteuid()), NOW_S)
    assert [len(progress.reports) for progress in found.values()] == [100] * 100
    assert sum(name.endswith(".jsonl") for name in opened) <= 150


def test_a_file_that_its_owner_has_leased_is_not_the_file_systems_fault(spool: ProgressSpool, tmp_path: Path) -> None:
    """Whoever opens it is to wait until the owner has given up the lease (fcntl(2))."""
    (tmp_path / "7.jsonl").write_text(line(1, 2.0))
    (tmp_path / "8.jsonl").write_text(line(1, 2.0))
    code = f"""
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open({str(tmp_path / "7.jsonl")!r}, os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            owner.stdout.readline()
            found = spool.read(dict.fromkeys((7, 8), os.geteuid()), NOW_S)
        finally:
            owner.kill()
    assert found[7].refused is not None
    assert (len(found[8].reports), spool.fault) == (1, "")


def test_a_line_without_end_is_passed_over(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_bytes(b"x" * 5000)
    assert read(spool).malformed == 1
    with path.open("ab") as file:
        file.write(b"\n" + line(1, 1.0).encode())
    assert [r.step for r in read(spool).reports] == [1]


def test_a_truncated_file_is_read_anew(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text(line(1, 2.0) + line(2, 1.0))
    read(spool)
    path.write_text(line(1, 9.0))
    assert [r.value for r in read(spool).reports] == [9.0]


def test_a_file_that_was_replaced_is_read_anew(spool: ProgressSpool, tmp_path: Path) -> None:
    """As when a directory is restored; the new one may be longer."""
    path = tmp_path / "7.jsonl"
    path.write_text(line(1, 2.0) + line(2, 1.5))
    assert [report.step for report in read(spool).reports] == [1, 2]
    other = tmp_path / "other"
    other.write_text(line(5, 1.0) + line(6, 0.9) + line(7, 0.8))
    other.replace(path)
    assert [report.step for report in read(spool).reports] == [5, 6, 7]


def test_what_a_former_job_reported_is_forgotten_once_its_id_is_another_jobs(
    spool: ProgressSpool, tmp_path: Path
) -> None:
    """Also by a daemon that goes on while slurmctld is installed anew. A requeue makes no other job of it."""
    path, owners = tmp_path / "7.jsonl", {7: os.geteuid()}
    former_s = NOW_S - 5000
    path.write_text(line(1, 9.0, time_s=former_s))
    assert [report.step for report in spool.read(owners, NOW_S, {7: former_s})[7].reports] == [1]
    assert spool.read(owners, NOW_S, {7: NOW_S - 1000})[7].reports == ()
    with path.open("a") as file:
        file.write(line(2, 1.0) + line(3, 0.5, restart=1))
    assert [report.step for report in spool.read(owners, NOW_S)[7].reports] == [2, 3]


@pytest.mark.parametrize("limit", ["MAX_BYTES_PER_USER", "MAX_BYTES_PER_LOOK"])
def test_what_a_former_job_reported_is_forgotten_also_while_another_job_uses_up_what_may_be_read(
    spool: ProgressSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    own, former_s, since_s = os.geteuid(), NOW_S - 5000, NOW_S - 1000
    (tmp_path / "7.jsonl").write_text(line(1, 9.0, time_s=former_s))
    assert len(spool.read({7: own}, NOW_S, {7: former_s})[7].reports) == 1
    text = line(1, 2.0, time_s=NOW_S)
    monkeypatch.setattr(f"slurm_plugin.observation.spool.{limit}", len(text))
    (tmp_path / "8.jsonl").write_text(9 * text)
    assert sorted(spool.read({8: own, 7: own}, NOW_S, {7: former_s})) == [7, 8]
    assert sorted(spool.read({8: own, 7: own}, NOW_S, {7: since_s})) == [8]
    assert sorted(spool.read({8: own, 7: own}, NOW_S)) == [8]


def test_what_another_user_reported_is_forgotten_also_while_nothing_may_be_read(
    spool: ProgressSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.geteuid()
    (tmp_path / "7.jsonl").write_text(line(1, 9.0))
    assert sorted(spool.read({7: own}, NOW_S)) == [7]
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_LOOK", 0)
    assert sorted(spool.read({7: own}, NOW_S)) == [7]
    assert sorted(spool.read({7: own + 1}, NOW_S)) == []


ADA, BOB = 20001, 20002
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def own(spool: Path, name: str, uid: int, text: str = line(1, 2.0)) -> Path:
    """A directory of a user with one progress file."""
    directory = spool / name
    directory.mkdir()
    path = directory / "7.jsonl"
    path.write_text(text)
    for each in (directory, path):
        os.chown(each, uid, uid)
    return path


@needs_root
def test_the_directory_of_the_owner_is_read_whatever_its_name(spool: ProgressSpool, tmp_path: Path) -> None:
    own(tmp_path, str(ADA), BOB, line(9, 9.0))  # taken by somebody else
    own(tmp_path, f"{ADA}-0a1b2c3d", ADA)
    own(tmp_path, "not-a-uid", ADA, line(9, 9.0))
    assert [r.step for r in spool.read({7: ADA}, NOW_S)[7].reports] == [1]
    assert [r.step for r in spool.read({7: BOB}, NOW_S)[7].reports] == [9]


@needs_root
def test_of_a_users_many_directories_only_a_few_are_opened(
    spool: ProgressSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def opens(name: str, above: int) -> int:
        opened.append(name)
        return open_directory(name, above)

    monkeypatch.setattr("slurm_plugin.observation.spool.open_directory", opens)
    many = [f"{BOB}-{n:08x}" for n in range(3 * MOST_DIRECTORIES)]
    for n, name in enumerate(reversed(many)):  # not in the order in which they are made
        own(tmp_path, name, BOB, line(n, 2.0))
    own(tmp_path, f"{BOB}-{'f' * 8}", ADA).rename(tmp_path / f"{BOB}-{'f' * 8}" / "8.jsonl")
    found = spool.read({7: BOB, 8: ADA}, NOW_S)
    assert [found[7].reports[0].step, found[8].reports[0].step] == [len(many) - 1, 1]
    assert sorted(opened) == [*many[:MOST_DIRECTORIES], f"{BOB}-{'f' * 8}"]


@needs_root
def test_what_is_read_at_a_time_does_not_grow_with_the_number_of_users(
    spool: ProgressSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(line(step, 2.0, time_s=NOW_S) for step in range(100, 500))
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_LOOK", len(text))
    own(tmp_path, str(ADA), ADA, text)
    own(tmp_path, str(BOB), BOB, text).rename(tmp_path / str(BOB) / "8.jsonl")
    owners = {7: ADA, 8: BOB}
    assert sum(len(found.reports) for found in spool.read(owners, NOW_S).values()) == 400
    assert [len(found.reports) for found in WholeProgressSpool(tmp_path).read(owners, NOW_S).values()] == [400, 400]


@needs_root
def test_who_writes_more_than_is_read_at_a_time_does_not_keep_others_from_being_read(
    spool: ProgressSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = line(1, 2.0, time_s=NOW_S)
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_LOOK", len(text))
    owners = {7: ADA, 8: BOB}
    for job_id, uid in owners.items():
        own(tmp_path, str(uid), uid, 200 * text).rename(tmp_path / str(uid) / f"{job_id}.jsonl")
    read = [spool.read(owners, NOW_S) for _ in range(100)][-1]
    assert all(found.reports for found in read.values()), "one of them is first each time"


@needs_root
def test_a_file_in_the_spool_itself_is_read_beside_directories(spool: ProgressSpool, tmp_path: Path) -> None:
    """As while a site moves from mode 1777 to 3777: jobs that run keep the files that they have opened."""
    own(tmp_path, str(ADA), ADA)
    (tmp_path / "8.jsonl").write_text(line(3, 1.0))
    os.chown(tmp_path / "8.jsonl", ADA, ADA)
    found = spool.read({7: ADA, 8: ADA}, NOW_S)
    assert [found[job].reports[0].step for job in (7, 8)] == [1, 3]


@needs_root
def test_somebody_elses_file_in_the_spool_does_not_hide_the_owners(spool: ProgressSpool, tmp_path: Path) -> None:
    (tmp_path / "7.jsonl").write_text(line(9, 9.0))
    os.chown(tmp_path / "7.jsonl", BOB, BOB)
    own(tmp_path, str(ADA), ADA)
    found = spool.read({7: ADA}, NOW_S)[7]
    assert (found.refused, [r.step for r in found.reports]) == (None, [1])


def test_a_clock_that_is_ahead_is_set_right(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    ahead_s = 3600.0
    path.write_text("".join(line(step, 1.0 / step, time_s=NOW_S + ahead_s - 40 + step) for step in (10, 20, 30, 40)))
    os.utime(path, (NOW_S, NOW_S))
    progress = read(spool)
    assert [r.time_s for r in progress.reports] == [NOW_S - 30, NOW_S - 20, NOW_S - 10, NOW_S]
    with path.open("a") as file:
        file.write(line(50, 0.01, time_s=NOW_S + ahead_s + 10) + line(1, 0.5, restart=1, time_s=NOW_S + 11))
    os.utime(path, (NOW_S + 11, NOW_S + 11))
    progress = spool.read({7: os.geteuid()}, NOW_S + 11)[7]
    assert [(r.restart, r.time_s) for r in progress.reports[-2:]] == [(0, NOW_S + 10), (1, NOW_S + 11)]
    assert progress.malformed == 0


def test_reports_are_not_lost_where_our_own_clock_is_behind(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    for behind_s, kept in ((120.0, [1]), (3600.0, [1])):
        with path.open("a") as file:
            file.write(line(1, 1.0, time_s=NOW_S + behind_s))
        os.utime(path, (NOW_S + behind_s, NOW_S + behind_s))
        assert [r.step for r in read(spool).reports] == kept


def test_rubbish_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.spool.MOST_MALFORMED", 1000)
    spool = ProgressSpool(tmp_path)
    (tmp_path / "7.jsonl").write_bytes(b"\n" * (3 * MAX_BYTES_PER_READ))
    first = read(spool)
    assert first.malformed <= MAX_BYTES_PER_READ
    found = read(spool)
    assert found.malformed == first.malformed
    assert found.refused is not None
    assert "malformed" in found.refused


@pytest.mark.parametrize("size", [1 << 22, 1 << 23])
def test_a_command_reads_rubbish_up_to_the_bound_too(tmp_path: Path, size: int) -> None:
    """It read 4 MiB at once, in 5 s: half of what it waits for all files of all users."""
    (tmp_path / "7.jsonl").write_bytes(b"1\n" * (size // 2))
    found = WholeProgressSpool(tmp_path).read({7: os.geteuid()}, NOW_S)[7]
    assert found.malformed < MOST_MALFORMED + MAX_BYTES_PER_READ
    assert found.refused is not None


def test_many_files_of_one_user_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_USER", 300)
    spool = ProgressSpool(tmp_path)
    for job_id in range(10):
        (tmp_path / f"{job_id}.jsonl").write_text(line(1, 2.0))
    owners = dict.fromkeys(range(10), os.geteuid())
    for _ in range(10):
        found = spool.read(owners, NOW_S)
    assert [len(found[job_id].reports) for job_id in range(10)] == [1] * 10


def test_the_first_of_a_users_jobs_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(line(step, 2.0) for step in range(10))
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_USER", len(text))
    for job_id in (1, 2, 3):
        (tmp_path / f"{job_id}.jsonl").write_text(text)
    spool, owners = ProgressSpool(tmp_path), dict.fromkeys((2, 1, 3), os.geteuid())
    read = [spool.read(owners, NOW_S) for _ in range(3)]
    assert [sorted(found) for found in read] == [[2], [1, 2], [1, 2, 3]]
    assert all(len(progress.reports) == 10 for progress in read[-1].values())


def test_files_beyond_those_that_are_listed_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody removes old files, those of new jobs were not seen."""
    monkeypatch.setattr("slurm_plugin.observation.spool.MOST_FILES", 5)
    monkeypatch.setattr("slurm_plugin.observation.spool.FEW", 0)
    for job_id in range(20):
        (tmp_path / f"{job_id}.jsonl").write_text(line(1, 2.0))
    found = ProgressSpool(tmp_path).read(dict.fromkeys(range(10, 30), os.geteuid()), NOW_S)
    assert sorted(found) == list(range(10, 20))


@pytest.mark.parametrize(("others", "lists"), [(0, 1), (100, 2)])
def test_the_files_of_a_few_jobs_are_opened_without_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int, lists: int
) -> None:
    """Of a user's few jobs also where others have many, whose files may be in the spool itself."""
    scanned, really = [], os.scandir

    def scans(path: int) -> object:
        scanned.append(path)
        return really(path)

    directory = tmp_path / str(os.geteuid())
    directory.mkdir()
    (directory / "7.jsonl").write_text(line(1, 2.0))
    (tmp_path / "8.jsonl").write_text(line(1, 2.0))
    monkeypatch.setattr(os, "scandir", scans)
    owners = dict.fromkeys((7, 8, 9), os.geteuid()) | dict.fromkeys(range(10, 10 + others), os.geteuid() + 1)
    assert sorted(ProgressSpool(tmp_path).read(owners, NOW_S)) == [7, 8]
    assert len(scanned) == lists, "that of the spool, for whose directories are whose"


def test_while_the_file_system_hangs_what_was_read_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, really = threading.Event(), os.open
    answers.set()

    def slow(path: str | Path, flags: int, *mode: int, **options: Any) -> int:
        if path == tmp_path:
            answers.wait()
        return really(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", slow)
    spool = ProgressSpool(tmp_path, patience_s=0.05)
    (tmp_path / "7.jsonl").write_text(line(1, 2.0))
    while not read(spool).reports:
        pass
    answers.clear()
    with (tmp_path / "7.jsonl").open("a") as file:
        file.write(line(2, 1.0))
    for _ in range(3):
        assert [r.step for r in read(spool).reports] == [1]
    assert caplog.text.count("has not answered") == 1
    answers.set()
    while len(read(spool).reports) < 2:
        pass


@pytest.mark.parametrize("call", ["open", "pread", "fstat"])
def test_a_stale_file_handle_keeps_what_was_read(
    spool: ProgressSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text(line(1, 2.0))
    before = read(spool)
    with path.open("a") as file:
        file.write(line(2, 1.0))
    real = getattr(os, call)

    def stale(where: object, *rest: object, **more: object) -> object:
        is_spool = call == "open" and where == tmp_path
        if not is_spool and (call != "fstat" or stat.S_ISREG(real(where).st_mode)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(where, *rest, **more)

    with monkeypatch.context() as broken:
        broken.setattr(f"slurm_plugin.observation.spool.os.{call}", stale)
        assert read(spool) is before
    assert [r.step for r in read(spool).reports] == [1, 2]
