"""Progress files are written by users: nothing in them is trusted beyond its form."""

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explsched.spool import open_directory
from sched_policy.model import ProgressPoint, StageProfile
from slurm_plugin.observation.progress import (
    MAX_BYTES_PER_READ,
    MAX_LINE_BYTES,
    MAX_METRICS,
    MAX_PARAMETERS,
    MAX_REPORTS,
    MAX_RUNS,
    MOST_DIRECTORIES,
    JobProgress,
    ProgressReport,
    ProgressSpool,
    WholeProgressSpool,
    fold,
)

NOW_S = 1_000_000.0


def line(step: int, value: float, **more: object) -> str:
    return json.dumps({"time_s": NOW_S - 100 + step, "step": step, "metric": "loss", "value": value} | more) + "\n"


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


@pytest.mark.parametrize(
    "bad",
    [
        b"not json",
        b'{"time_s": 1}',
        b"[1, 2]",
        b"\x00\xff\xfe",
        b'{"time_s": 1, "step": 3, "metric": "loss", "value": NaN}',
        b'{"time_s": 1, "step": 3, "metric": "loss", "value": null}',
        b'{"time_s": 1, "step": 3, "metric": "loss", "value": 1e999}',
        b'{"time_s": 1, "step": -3, "metric": "loss", "value": 1}',
        b'{"time_s": 1, "step": "3", "metric": "loss", "value": 1}',
        b'{"time_s": 9e9, "step": 3, "metric": "loss", "value": 1}',
        b'{"time_s": 1, "event": "explode"}',
        b'{"time_s": 1, "step": 3, "value": 1, "x": ' + b"[" * 1900 + b"]" * 1900 + b"}",
        b'{"time_s": 1, "step": 3, "metric": "' + b"x" * MAX_LINE_BYTES + b'", "value": 1}',
        b"",
    ],
)
def test_malformed_lines_are_counted_and_skipped(spool: ProgressSpool, tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "7.jsonl").write_bytes(line(1, 2.0).encode() + bad + b"\n" + line(2, 1.0).encode())
    progress = read(spool)
    assert [r.step for r in progress.reports] == [1, 2]
    assert progress.malformed == 1


def test_steps_going_backwards_are_refused_within_a_run_only(spool: ProgressSpool, tmp_path: Path) -> None:
    (tmp_path / "7.jsonl").write_text(line(5, 2.0) + line(4, 1.0) + line(3, 1.0, restart=1))
    progress = read(spool)
    assert [(r.restart, r.step) for r in progress.reports] == [(0, 5), (1, 3)]
    assert progress.malformed == 1


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


def test_a_huge_file_is_read_in_parts_and_thinned(spool: ProgressSpool, tmp_path: Path) -> None:
    (tmp_path / "7.jsonl").write_text(
        "".join(json.dumps({"time_s": i, "step": i, "metric": "loss", "value": 1 / i}) + "\n" for i in range(1, 40001))
    )
    for _ in range(30):
        progress = read(spool)
    assert len(progress.reports) <= MAX_REPORTS
    assert (progress.reports[0].step, progress.reports[-1].step) == (1, 40000)
    assert progress.malformed == 0


@pytest.mark.parametrize("at_once", [1, 3, 100, 3000])
def test_each_metric_keeps_its_best_and_its_share_when_reports_are_thinned(at_once: int) -> None:
    """`report(step=step, loss=loss, accuracy=accuracy)` writes them in turn."""
    best = {"loss": 0.1, "accuracy": 0.9}
    lines = [
        line(step, best[metric] if step == 400 else 0.5, metric=metric).encode()
        for step in range(1500)
        for metric in best
    ]
    progress = JobProgress()
    for start in range(0, len(lines), at_once):
        progress = fold(progress, lines[start : start + at_once], NOW_S + 2000)
        assert len(progress.reports) <= MAX_REPORTS
    for metric, value in best.items():
        own = [report for report in progress.reports if report.metric == metric]
        assert (own[0].step, own[-1].step) == (0, 1499)
        assert value in {report.value for report in own}
        assert len(own) >= 100


def test_more_metrics_than_any_training_has_are_counted_not_kept() -> None:
    lines = [line(step, 1.0, metric=f"m{number}") for step in range(40) for number in range(MAX_METRICS + 10)]
    progress = fold(JobProgress(), [text.encode() for text in lines], NOW_S)
    assert (len({report.metric for report in progress.reports}), progress.malformed) == (MAX_METRICS, 400)
    assert len(progress.reports) <= MAX_REPORTS


def test_a_command_reads_files_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.progress.MAX_BYTES_PER_READ", 1000)
    monkeypatch.setattr("slurm_plugin.observation.progress.MAX_BYTES_PER_USER", 1500)
    for job_id in range(5):
        (tmp_path / f"{job_id}.jsonl").write_text("".join(line(step, 2.0) for step in range(100)) + line(100, 1.0)[:9])
    found = WholeProgressSpool(tmp_path).read(dict.fromkeys(range(5), os.geteuid()), NOW_S)
    assert [len(found[job_id].reports) for job_id in range(5)] == [100] * 5


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


def test_run_time_adds_up_over_requeues() -> None:
    lines = [
        {"time_s": 100.0, "event": "start"},
        {"time_s": 150.0, "step": 5, "value": 1.0},
        {"time_s": 500.0, "restart": 1, "event": "start"},
        {"time_s": 530.0, "restart": 1, "step": 8, "value": 0.5},
    ]
    progress = fold(JobProgress(), [json.dumps(entry).encode() for entry in lines], NOW_S)
    assert progress.run_s([ProgressReport(530.0, 1, 5, "loss", 1.0)]) == [80.0]


def test_runs_beyond_any_jobs_are_counted_not_kept() -> None:
    """Each would cost memory for good, and time with each report in each pass."""
    lines = [line(1, 1.0, restart=run, time_s=float(run)) for run in range(MAX_RUNS + 500)]
    progress = fold(JobProgress(), [text.encode() for text in lines], NOW_S)
    assert (len(progress.runs), progress.malformed) == (MAX_RUNS, 500)
    assert len(progress.points("loss", 1)) <= MAX_REPORTS


def test_runs_of_other_sizes_count_with_theirs() -> None:
    lines = [line(0, 3.0), line(10, 2.0), line(50, 1.0, restart=1), line(60, 0.5, restart=1)]
    progress = fold(JobProgress(), [text.encode() for text in lines], NOW_S)
    assert [point.gpu_s for point in progress.points("loss", 4)] == [0, 40, 40, 80]
    assert [point.gpu_s for point in progress.points("loss", 4, ((0, 1),))] == [0, 10, 10, 50]


def test_events() -> None:
    events = [b'{"time_s": 1, "event": "start"}', b'{"time_s": 2, "event": "checkpoint", "step": 3}']
    progress = fold(JobProgress(), events, NOW_S)
    assert progress.checkpoint_s == 2
    assert not progress.ended
    ended = fold(progress, [b'{"time_s": 3, "event": "end"}'], NOW_S)
    assert ended.ended
    # Somebody has put it back to the queue: it may be preempted again.
    assert not fold(ended, [b'{"time_s": 4, "restart": 1, "event": "start"}'], NOW_S).ended
    failed = fold(progress, [b'{"time_s": 3, "event": "end", "status": 7}'], NOW_S)
    assert (failed.ended, failed.exit_status) == (True, 7)
    assert fold(failed, [b'{"time_s": 4, "restart": 1, "event": "start"}'], NOW_S).exit_status is None


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_survived(lines: list[bytes]) -> None:
    progress = fold(JobProgress(), lines, NOW_S)
    assert progress.malformed + len(progress.reports) <= len(lines)


def told(restart: int, **parameters: object) -> str:
    return json.dumps({"time_s": NOW_S - 50, "restart": restart, "params": parameters}) + "\n"


def test_parameters_of_the_last_run_count_and_differences_are_counted(spool: ProgressSpool, tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text(told(0, lr=0.1, width=64, opt="sgd") + told(0, lr=0.2))
    first = read(spool).parameters
    assert (dict(first.values), first.changed) == ({"lr": 0.2, "width": 64.0, "opt": "sgd"}, frozenset())
    with path.open("a") as file:
        file.write(told(1, lr=0.1) + told(1, lr=0.2))  # a command line, and what the program made of it
    assert read(spool).parameters.changed == frozenset()
    with path.open("a") as file:
        file.write(told(2, lr=0.3, opt=True) + told(3, width=64) + told(2, lr=9.0))
    found = read(spool)
    assert dict(found.parameters.values) == {"lr": 0.3, "width": 64.0, "opt": True}
    assert (found.parameters.changed, found.malformed) == ({"lr", "opt"}, 1)


def test_parameters_beyond_the_limits_are_counted_not_kept(spool: ProgressSpool, tmp_path: Path) -> None:
    lines = [told(0, **{f"p{n}": n}) for n in range(MAX_PARAMETERS + 5)]
    strange = [told(0, x=[1]), told(0, x=None), told(0, x="y" * 999), told(0, **{"n" * 999: 1})]
    (tmp_path / "7.jsonl").write_text("".join(lines + strange))
    found = read(spool)
    assert (len(found.parameters.values), found.malformed) == (MAX_PARAMETERS, 9)


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

    monkeypatch.setattr("slurm_plugin.observation.progress.open_directory", opens)
    many = [f"{BOB}-{n:08x}" for n in range(3 * MOST_DIRECTORIES)]
    for n, name in enumerate(reversed(many)):  # not in the order in which they are made
        own(tmp_path, name, BOB, line(n, 2.0))
    own(tmp_path, f"{BOB}-{'f' * 8}", ADA).rename(tmp_path / f"{BOB}-{'f' * 8}" / "8.jsonl")
    found = spool.read({7: BOB, 8: ADA}, NOW_S)
    assert [found[7].reports[0].step, found[8].reports[0].step] == [len(many) - 1, 1]
    assert sorted(opened) == [*many[:MOST_DIRECTORIES], f"{BOB}-{'f' * 8}"]


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


def test_rubbish_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.progress.MOST_MALFORMED", 1000)
    spool = ProgressSpool(tmp_path)
    (tmp_path / "7.jsonl").write_bytes(b"\n" * (3 * MAX_BYTES_PER_READ))
    first = read(spool)
    assert first.malformed <= MAX_BYTES_PER_READ
    found = read(spool)
    assert found.malformed == first.malformed
    assert found.refused is not None
    assert "malformed" in found.refused


def test_many_files_of_one_user_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.progress.MAX_BYTES_PER_USER", 300)
    spool = ProgressSpool(tmp_path)
    for job_id in range(10):
        (tmp_path / f"{job_id}.jsonl").write_text(line(1, 2.0))
    owners = dict.fromkeys(range(10), os.geteuid())
    for _ in range(10):
        found = spool.read(owners, NOW_S)
    assert [len(found[job_id].reports) for job_id in range(10)] == [1] * 10


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
        broken.setattr(f"slurm_plugin.observation.progress.os.{call}", stale)
        assert read(spool) is before
    assert [r.step for r in read(spool).reports] == [1, 2]


def test_of_measured_stages_the_fastest_count_and_nonsense_is_skipped(spool: ProgressSpool, tmp_path: Path) -> None:
    told = ("120/70/45/5", "110/60/45/5", "150/90/50/10", "0/1/1/1", "10/x/1/1")
    (tmp_path / "7.jsonl").write_text(
        "".join(json.dumps({"time_s": NOW_S, "stages": stages}) + "\n" for stages in told)
    )
    found = read(spool)
    assert found.stages == StageProfile(0.110, 0.060, 0.045, 0.005)
    assert (found.malformed, found.reports) == (2, ())
