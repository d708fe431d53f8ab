"""The audit file: every change with what was before, rotated, exact modes; nobody is kept from steering by it."""

from __future__ import annotations

import os
import resource
import stat
import time
import tracemalloc
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from explsched.errors import SlurmUnreachableError
from sched_policy.model import NodeGpus
from sched_policy.plan import Plan, Preemption, Reservation, Score, Stop
from slurm_plugin.audit import Before, Reasons, apply, entries
from slurm_plugin.audit_file import AuditEntry, AuditError, AuditTrail, RecentEntries, read, replayed
from slurm_plugin.client import changes as all_changes
from slurm_plugin.client.changes import (
    NOT_KNOWN,
    AttachReservation,
    CancelJob,
    Change,
    ChangeFailure,
    CreateReservation,
    DeleteReservation,
    ExtendReservation,
    RequeueJob,
    SetSiteFactor,
    SignalJob,
    TargetJob,
)
from slurm_plugin.client.notation import clock
from slurm_plugin.client.records import SlurmReservation
from tests.slurm_kit import FakeSlurm, record

NOW_S = 1000.0
LEASE = SlurmReservation("explsched_5", 100.0, 220.0, ("n1",), ("ada",), frozenset())
BEFORE = Before.of({5: record(5, site_factor=7), 6: record(6, state="RUNNING", user="bob")}, (LEASE,))


def told(change: Change, plan: Plan | None = None, failures: tuple[ChangeFailure, ...] = ()) -> AuditEntry:
    reasons = Reasons.of("srsf", plan or Plan(), [change])
    [entry] = entries([change], failures, BEFORE, reasons, NOW_S)
    return entry


def entry(job: int, after: int, time_s: float = NOW_S) -> AuditEntry:
    return AuditEntry(time_s, job, "SiteFactor", 0, after, "srsf", "order", "short")


def test_an_order_tells_what_was_and_the_plans_reason() -> None:
    found = told(SetSiteFactor(5, 9), Plan(scores=(Score(5, 1.0, "short"), Score(6, 0.5, "long"))))
    assert found == AuditEntry(NOW_S, 5, "SiteFactor", 7, 9, "srsf", "order", "short", "ada")
    assert told(SetSiteFactor(5, 7)).reason == "not in force, so written again"


def test_leases_are_told_with_their_job() -> None:
    plan = Plan(reservations=(Reservation(5, (NodeGpus("n1", 4),), 100.0, 220.0, "blocked, and first"),))
    made = told(CreateReservation("explsched_5", 100.0, 2, ("n1", "n2"), ("ada",), "main"), plan)
    assert (made.job, made.before, made.after) == (5, "", f"n1,n2 from {clock(100.0)} for 2 min")
    assert made.reason == told(AttachReservation(5, "explsched_5"), plan).reason == "blocked, and first"
    longer, gone = told(ExtendReservation("explsched_5", 340.0)), told(DeleteReservation("explsched_5"))
    assert (longer.before, longer.after) == (clock(220.0), clock(340.0))
    assert (gone.before, gone.after) == (f"n1 from {clock(100.0)} to {clock(220.0)}", "")


def test_interruptions_have_the_plans_reasons() -> None:
    plan = Plan(preemptions=(Preemption(6, "worth less"),), stops=(Stop(5, "has learned all"),))
    assert (told(SignalJob(6, "USR1"), plan).reason, told(SignalJob(6, "USR1"), plan).user) == ("worth less", "bob")
    assert (told(CancelJob(5), plan).after, told(CancelJob(5), plan).reason) == ("CANCELLED", "has learned all")


def test_a_pin_is_two_changes() -> None:
    fields = entries([TargetJob(5, ("n1",), "words")], (), BEFORE, Reasons.all_for("why"), NOW_S)
    assert [(one.field, one.after, one.reason) for one in fields] == [
        ("ReqNodeList", "n1", "why"),
        ("AdminComment", "words", "why"),
    ]


def test_what_slurm_refused_is_told_with_its_words() -> None:
    change = SetSiteFactor(5, 9)
    assert told(change, failures=(ChangeFailure(change, "Access denied"),)).refused == "Access denied"


@pytest.mark.parametrize("kind", get_args(all_changes.Change), ids=lambda kind: kind.__name__)
def test_every_kind_of_change_has_an_entry(kind: type[Change]) -> None:
    values = {"int": 5, "str": "explsched_5", "float": 1.0}
    change = kind(*(values.get(str(kind.__annotations__[name]), ("n1",)) for name in kind.__struct_fields__))
    assert entries([change], (), BEFORE, Reasons.all_for("why"), NOW_S)


def test_the_file_is_read_back_by_job_and_time(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 2)
    trail.write([entry(5, 1, 10.0), entry(6, 2, 20.0)])
    trail.write([entry(5, 3, 30.0)])
    assert [one.after for one in read(trail.path, 0, frozenset({5}))] == [1, 3]
    assert [one.after for one in read(trail.path, 20.0)] == [2, 3]
    assert replayed(read(trail.path), "SiteFactor") == {5: 3, 6: 2}
    assert stat.S_IMODE(trail.path.stat().st_mode) == 0o640


def test_what_slurm_refuses_again_and_again_is_written_every_ten_minutes(tmp_path: Path) -> None:
    """A daemon without its rights filled all files that are kept within days, and what it had changed was lost."""
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 2)

    def refused(time_s: float, words: str = "Access denied") -> AuditEntry:
        return msgspec.structs.replace(entry(1, int(time_s), time_s), refused=words)  # another factor each time

    for at_s in range(0, 1200, 15):
        trail.write([refused(NOW_S + at_s), entry(2, at_s, NOW_S + at_s)])
    assert [found.time_s - NOW_S for found in read(trail.path) if found.job == 1] == [0, 600]
    assert len(list(read(trail.path))) == len(trail.recent) == 2 + 80
    trail.write([refused(NOW_S + 1200.0, "Invalid job id")])
    trail.write([entry(1, 7, NOW_S + 1201.0)])
    trail.write([refused(NOW_S + 1202.0, "Invalid job id")])  # as it was taken meanwhile
    assert [found.time_s - NOW_S for found in read(trail.path)][-3:] == [1200, 1201, 1202]


def test_what_slurm_may_have_taken_is_always_written(tmp_path: Path) -> None:
    """A site factor without an answer hid the next ones, of which one was in force."""
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 2)
    for after in (100, -900, 5000):
        trail.write([msgspec.structs.replace(entry(1, after), refused=f"{NOT_KNOWN}slurmctld does not answer")])
    assert [found.after for found in read(trail.path)] == [100, -900, 5000]


def test_refusals_of_a_requeue_and_of_a_stop_are_two(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 2)
    for change in (RequeueJob(6), CancelJob(6)):
        trail.write([told(change, failures=(ChangeFailure(change, "Access denied"),))])
    assert [found.after for found in read(trail.path)] == ["PENDING", "CANCELLED"]


def test_full_files_are_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.jsonl", 1e-6, 2)
    for after in range(5):
        trail.write([entry(5, after)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert [one.after for one in read(trail.path)] == [2, 3, 4]


def test_long_files_are_not_held_in_memory_and_those_from_before_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The ten files of 64 MiB that there are by default took 740 MiB, whatever was asked for."""
    trail = AuditTrail(tmp_path / "audit.jsonl", 4, 1)
    trail.write([entry(5, 1)] * 20_000)
    trail.path.rename(tmp_path / "audit.jsonl.1")
    trail.write([entry(5, 2)])
    tracemalloc.start()
    count = sum(1 for _ in read(trail.path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (count, peak < (tmp_path / "audit.jsonl.1").stat().st_size / 2) == (20_001, True)
    (tmp_path / "audit.jsonl.1").write_text("{")
    week_ago_s = time.time() - 604_800
    os.utime(tmp_path / "audit.jsonl.1", (week_ago_s, week_ago_s))
    assert list(read(trail.path, time.time() - 7200)) == []
    assert "audit line left out" not in caplog.text


def test_what_is_put_aside_while_it_is_read_is_read_once(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.jsonl", 1e-6, 2)
    for after in (1, 2):
        trail.write([entry(5, after)])
    reading = read(trail.path)
    first = next(reading)
    trail.write([entry(5, 3)])
    assert [one.after for one in (first, *reading)] == [1, 2]


@pytest.mark.parametrize("line", [b'{"time_s": 1\n', b'{"time_s": 1, "job": 5, "field": "\xff"}\n'])
def test_a_line_that_cannot_be_read_hides_no_other(
    tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 2)
    trail.write([entry(5, 1)])
    with trail.path.open("ab") as file:
        file.write(line)
    trail.write([entry(5, 2)])
    assert [one.after for one in read(trail.path)] == [1, 2]
    assert [one.after for one in RecentEntries(trail.path, 3600, 10).now(NOW_S)] == [1, 2]
    assert "audit line left out" in caplog.text


def test_what_is_written_after_a_cut_line_is_read(tmp_path: Path) -> None:
    """A disk that fills up takes a part of a write, and refuses the rest."""
    path = tmp_path / "audit.jsonl"
    trail, looks = AuditTrail(path, 1.0, 1), RecentEntries(path, 100.0, 10)
    trail.write([entry(1, 10)])
    largest = path.stat().st_size * 3 // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ, so the write fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        trail.write([entry(2, 10)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (path.stat().st_size, trail.faults) == (largest, 1)
    trail.write([entry(3, 10), entry(4, 10)])
    assert [one.job for one in read(path)] == [1, 3, 4]
    assert [one.job for one in looks.now(NOW_S)] == [1, 3, 4]


def test_a_file_that_cannot_be_written_keeps_nobody_from_steering(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trail, slurm = AuditTrail(tmp_path / "missing" / "audit.jsonl", 1, 2), FakeSlurm((record(5),))
    for factor in (1, 2):
        assert apply(slurm, trail, [SetSiteFactor(5, factor)], BEFORE, Reasons.all_for(""), NOW_S) == ()
    assert slurm.carried_out == [SetSiteFactor(5, 1), SetSiteFactor(5, 2)]
    assert caplog.text.count("changes are not in the audit file") == 1
    assert (trail.faults, [one.after for one in trail.recent]) == (2, [1, 2])


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "other")
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 2)
    trail.write([entry(5, 1)])
    assert (trail.faults, (tmp_path / "other").read_text()) == (1, "")


def test_what_became_of_changes_without_an_answer_is_not_known(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 2)
    with pytest.raises(SlurmUnreachableError):
        apply(FakeSlurm(silent=True), trail, [SetSiteFactor(5, 1)], BEFORE, Reasons.all_for(""), NOW_S)
    assert [one.refused.startswith("not known: ") for one in read(trail.path)] == [True]


def test_a_file_that_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(AuditError, match=r"audit.jsonl: cannot be read"):
        list(read(tmp_path / "audit.jsonl"))


def test_a_directory_that_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    """As one that is closed to this user; even root gets an error for a name that is too long."""
    with pytest.raises(AuditError, match=r"/audit.jsonl: cannot be read: File name too long"):
        list(read(tmp_path / ("x" * 300) / "audit.jsonl"))


def test_who_looks_again_reads_what_was_added_and_misses_nothing_at_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trail, recent = AuditTrail(path, 0.0005, 3), RecentEntries(path, 3600, 10)
    assert list(recent.now(NOW_S)) == []
    for number in range(8):
        trail.write([entry(number + 1, number)])
        with path.open("ab") as file:
            file.write(b'{"time_s"')  # a line that is being written
        assert [one.job for one in recent.now(NOW_S)][-1] == number + 1
        path.write_bytes(path.read_bytes().removesuffix(b'{"time_s"'))
    assert path.with_name("audit.jsonl.1").exists()
    jobs = [one.job or 0 for one in recent.now(NOW_S)]
    assert jobs == sorted(set(jobs))
    assert jobs == [one.job for one in read(path)]
    assert list(recent.now(NOW_S + 3601)) == []
    many = RecentEntries(path, 3600, 2)
    assert [one.job for one in many.now(NOW_S)] == [7, 8]


def test_a_rotation_while_somebody_looks_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that was put aside meanwhile nothing was shown, and the next one's entries twice."""
    path = tmp_path / "audit.jsonl"
    trail, recent, really = AuditTrail(path, 0.0, 9), RecentEntries(path, 3600, 10), Path.open
    trail.write([entry(1, 0)])

    def opens(self: Path, mode: str) -> object:
        if self != path:
            return really(self, mode)
        trail.write([entry(2, 0)])
        file = really(self, mode)
        trail.write([entry(3, 0)])
        return file

    with monkeypatch.context() as rotating:
        rotating.setattr(Path, "open", opens)
        assert [one.job for one in recent.now(NOW_S)] == [1, 2]
    assert [one.job for one in recent.now(NOW_S)] == [1, 2, 3]
    path.rename(tmp_path / "audit.jsonl.0")  # as before the next entry is written
    assert [one.job for one in recent.now(NOW_S)] == [1, 2, 3]


def test_of_older_files_no_more_is_read_than_is_wanted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All of them were, 600 MB at a page's start."""
    at_s = time.time()
    path, older = tmp_path / "audit.jsonl", [tmp_path / f"audit.jsonl.{number}" for number in (1, 2, 3)]
    for file, values in ((older[1], (1, 2)), (older[0], (3, 4, 5)), (path, (6,))):
        file.write_bytes(b"".join(msgspec.json.encode(entry(1, value, at_s)) + b"\n" for value in values))
    older[2].write_text("not read\n")
    assert [one.after for one in RecentEntries(path, 3600, 6).now(at_s)] == [1, 2, 3, 4, 5, 6]
    assert [one.after for one in RecentEntries(path, 3600, 3).now(at_s)] == [4, 5, 6]
    os.utime(older[1], (at_s - 8000, at_s - 8000))
    assert [one.after for one in RecentEntries(path, 3600, 100).now(at_s)] == [3, 4, 5, 6]
    assert not caplog.text
