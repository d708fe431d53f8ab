"""Changes as the input of one scontrol: what each says, and what scontrol says of each."""

from __future__ import annotations

import time

import pytest

from explsched.errors import SlurmError
from slurm_plugin.client import batch
from slurm_plugin.client.changes import (
    AttachReservation,
    CancelJob,
    Change,
    ChangeFailure,
    ClearDependency,
    CreateReservation,
    DelayStart,
    DeleteReservation,
    ExtendReservation,
    RequeueJob,
    SetAdminComment,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    SignalJob,
    StartAtOnce,
    TargetJob,
    Unanswered,
)
from slurm_plugin.client.notation import clock

NOON_S = 1_700_000_000.0
NOON = "uts1700000000"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (SetSiteFactor(7, 0), "u job=7 sitef=0"),
        (AttachReservation(7, "explsched_7"), "update JobId=7 ReservationName=explsched_7"),
        (AttachReservation(7, ""), "update JobId=7 ReservationName="),
        # Incomplete: a job that has ended by now must not be run again.
        (RequeueJob(7), "requeue Incomplete 7"),
        (StartAtOnce(7), "update JobId=7 StartTime=now"),
        (DelayStart(7, NOON_S), f"update JobId=7 StartTime={NOON}"),
        (SetGres(7, "gpu:a100:2,nvme:1"), "update JobId=7 Gres=gpu:a100:2,nvme:1"),
        # A range, or the old count stays the largest.
        (SetNodeCount(7, 2, 4, 16), "update JobId=7 NumNodes=2-2 NumTasks=4 NumCPUs=16"),
        (ClearDependency(7), "update JobId=7 Dependency="),
        (TargetJob(7, ("n1",), "a:b=c"), "update JobId=7 ReqNodeList=n1 AdminComment=a:b=c"),
        (TargetJob(7, (), ""), "update JobId=7 ReqNodeList= AdminComment="),
        (SetAdminComment(7, "explsched:n=1"), "update JobId=7 AdminComment=explsched:n=1"),
        (DeleteReservation("explsched_7"), "delete ReservationName=explsched_7"),
        (ExtendReservation("explsched_7", NOON_S), f"update ReservationName=explsched_7 EndTime={NOON}"),
        (
            CreateReservation("explsched_7", NOON_S, 2, ("n1", "n2"), ("ada",), "main"),
            f"create reservation ReservationName=explsched_7 StartTime={NOON} Duration=2 Nodes=n1,n2 Users=ada "
            "PartitionName=main Flags=FLEX,NO_HOLD_JOBS_AFTER,IGNORE_JOBS",
        ),
    ],
)
def test_each_change_is_one_line(change: Change, line: str) -> None:
    assert batch.command(change) == line


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (SetSiteFactor(7, 9), "scontrol update JobId=7 SiteFactor=9"),
        (SignalJob(7, "USR1"), "scancel --batch --signal=USR1 7"),
        (CancelJob(7), "scancel 7"),
        (DelayStart(7, NOON_S), f"scontrol update JobId=7 StartTime={clock(NOON_S)}"),
        (SetAdminComment(7, "JS1:a b"), "scontrol update JobId=7 'AdminComment=JS1:a b'"),
        (AttachReservation(7, "explsched_7"), "scontrol update JobId=7 ReservationName=explsched_7"),
    ],
)
def test_people_read_a_change_as_a_command_of_slurms(change: Change, line: str) -> None:
    assert batch.shown(change) == line


def test_a_change_that_an_odd_name_keeps_from_slurm_is_shown_with_the_reason() -> None:
    lease = CreateReservation("explsched_7", NOON_S, 2, ("n1",), ("CORP\\alice",), "main")
    assert "(not given to Slurm: 'CORP\\\\alice' cannot be given to scontrol" in batch.shown(lease)


def test_the_hour_that_comes_twice_in_autumn_has_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        summer_s = 1_792_888_200.0  # 2026-10-25 02:30, an hour before 02:30
        assert [time.localtime(summer_s + after_s).tm_hour for after_s in (0, 3600)] == [2, 2]
        assert batch.command(ExtendReservation("e", summer_s)) != batch.command(ExtendReservation("e", summer_s + 3600))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_is_not_scontrols_is_refused() -> None:
    with pytest.raises(SlurmError, match="scontrol has no command for CancelJob"):
        batch.command(CancelJob(7))


def test_words_with_blanks_go_to_a_scontrol_of_their_own() -> None:
    change = TargetJob(7, ("n1",), "two words; $(id)")
    assert not batch.fits_a_line(change)
    assert batch.arguments(change) == ["update", "JobId=7", "ReqNodeList=n1", "AdminComment=two words; $(id)"]
    assert batch.fits_a_line(TargetJob(7, ("n1",), "one"))
    with pytest.raises(SlurmError, match="cannot be given to scontrol on a line"):
        batch.command(change)


def test_a_scontrol_that_ended_early_is_a_complaint_about_all_that_it_did_not_come_to() -> None:
    groups = batch.single([RequeueJob(1), RequeueJob(2), RequeueJob(3)])
    found = batch.complaints(groups, "invalid keyword: m-0\n", "m")
    why = "not known: scontrol ended before it came to this"
    assert found == tuple((group, why, Unanswered) for group in groups[1:])


def test_site_factors_share_a_marker_and_other_changes_have_their_own() -> None:
    factors = [SetSiteFactor(i, i) for i in range(120)]
    other: list[Change] = [AttachReservation(3, "explsched_3"), RequeueJob(4)]
    groups = batch.groups([*factors, *other, SetSiteFactor(7, 7)])
    assert [change for group in groups for change in group] == [*factors, *other, SetSiteFactor(7, 7)]
    assert [len(group) for group in groups] == [50, 50, 20, 1, 1, 1]


def test_complaints_are_told_by_group() -> None:
    groups = batch.single(
        [SetSiteFactor(1, 5), SetSiteFactor(2, 5), AttachReservation(3, "explsched_3"), RequeueJob(4)]
    )
    stderr = (
        "invalid keyword: m-0\nInvalid job id specified for job 2\ninvalid keyword: m-1\n"
        "invalid keyword: m-2\nslurm_load_jobs error: gone"
    )
    assert batch.complaints(groups, stderr, "m") == (
        (groups[1], "Invalid job id specified for job 2", ChangeFailure),
        (groups[3], "not known: slurm_load_jobs error: gone", Unanswered),
    )


def test_an_array_of_which_some_tasks_have_ended_is_no_complaint() -> None:
    together = tuple(SetSiteFactor(i, 5) for i in (1, 2, 3))
    groups: list[batch.Group] = [(SetSiteFactor(3, 0),), together, (SetSiteFactor(4, 0),), (SetSiteFactor(5, 0),)]
    stderr = (
        "3_0: Job has already finished\n3_1-29%1: No error\ninvalid keyword: m-0\n"
        "3_0,2: Job has already finished\n3_1,[3-29]: No error\nInvalid job id specified for job 2\n"
        "invalid keyword: m-1\n"
        "4_0: Job has already finished\n4_1: Access/permission denied\n4_2: No error\ninvalid keyword: m-2\n"
        "5_0-3: Job has already finished\ninvalid keyword: m-3\n"
    )
    assert batch.complaints(groups, stderr, "m") == (
        (together, "Invalid job id specified for job 2", ChangeFailure),
        (groups[2], "4_1: Access/permission denied", ChangeFailure),
        (groups[3], "5_0-3: Job has already finished", ChangeFailure),
    )


@pytest.mark.parametrize("name", ["a b", "a\nupdate JobId=1 Priority=1", "a=b", 'a"', "", "a,b", "$(x)"])
def test_nothing_can_be_smuggled_into_scontrol(name: str) -> None:
    with pytest.raises(SlurmError, match="cannot be given to scontrol"):
        batch.command(DeleteReservation(name))
    with pytest.raises(SlurmError, match="cannot be given to scontrol"):
        batch.command(CreateReservation("r", 0, 1, ("n1",), (name,), "main"))
