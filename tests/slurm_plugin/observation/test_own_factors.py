"""Which part of a site factor is ours, through restarts, lost writes and other people's writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.observation.saved_state import SavedState
from slurm_plugin.observation.site_factors import OwnFactors
from tests.slurm_kit import record


def noted(path: Path, job_id: int, found: int, factor: int) -> None:
    """A daemon that finds one site factor and writes another."""
    OwnFactors.of_daemon(path).note([SetSiteFactor(job_id, factor)], {job_id: record(job_id, site_factor=found)})


def test_what_we_wrote_is_ours_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 0, 300)
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=300)]) == {}


@pytest.mark.parametrize("damaged", [b'{"5": "\xff"}', b"{", b""])
def test_a_damaged_file_is_none(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "notes.json"
    path.write_bytes(damaged)
    assert SavedState(path, dict[int, str], "notes", "starts without them").read() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for another user")
def test_what_root_saves_is_the_daemons(tmp_path: Path) -> None:
    """As by `sexplschedd --once`, also with umask 077."""
    (directory := tmp_path / "explsched").mkdir()
    os.chown(directory, 469, 470)
    before = os.umask(0o077)
    try:
        assert SavedState(directory / "notes.json", dict[int, str], "notes", "starts without them").write({5: "a"})
    finally:
        os.umask(before)
    found = (directory / "notes.json").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (469, 470, 0o640)


def test_what_was_there_before_is_somebody_elses_and_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=1000)]) == {5: 1000}
    noted(path, 5, 1000, 1300)
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=1300)]) == {5: 1000}


def test_what_an_admin_sets_over_ours_counts(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 0, 300)
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=7)]) == {5: 7}
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=0)]) == {}
    noted(path, 5, 7, 20)
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=20)]) == {5: 7}


def test_a_write_that_slurm_lost_leaves_an_older_one_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 0, 300)
    noted(path, 5, 300, 400)
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=300)]) == {}


def test_a_write_without_an_answer_is_ours_if_slurm_has_taken_it_and_none_of_the_next(tmp_path: Path) -> None:
    own = OwnFactors.of_daemon(tmp_path / "site_factors.json")
    job = record(5, site_factor=0)
    for factor in (100, 200, 300, 400):
        own.take_in([job])
        own.note([SetSiteFactor(5, factor)], {5: job})
        if factor >= 300:
            own.note_failed([SetSiteFactor(5, factor)])
        job = replace(job, site_factor=min(factor, 300))
    assert own.others([job]) == {}


def test_a_task_that_left_its_array_has_the_arrays_factor(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 0, 300)
    assert OwnFactors.of_daemon(path).others([record(9, array_job_id=5, site_factor=300)]) == {}


def test_a_requeued_task_has_the_arrays_factor_after_the_task_with_the_arrays_id_has_ended(tmp_path: Path) -> None:
    own = OwnFactors.of_daemon(tmp_path / "site_factors.json")
    array = record(5, site_factor=0, array_job_id=5, array_tasks=3)
    first = record(6, array_job_id=5, array_task_id=1, state="RUNNING", site_factor=None)
    own.note([SetSiteFactor(5, 300)], {5: array})
    own.take_in([replace(array, site_factor=300), first])
    own.take_in([first])
    own.note([], {6: first})
    (tmp_path / "copy").write_bytes((tmp_path / "site_factors.json").read_bytes())
    for daemon in (own, OwnFactors.of_daemon(tmp_path / "copy")):
        assert daemon.others([replace(first, state="PENDING", site_factor=300)]) == {}
        assert daemon.others([replace(first, state="PENDING", site_factor=7)]) == {6: 7}


def test_what_is_written_to_an_array_is_written_to_its_running_tasks_too(tmp_path: Path) -> None:
    own = OwnFactors.of_daemon(tmp_path / "site_factors.json")
    array = record(5, site_factor=0, array_job_id=5, array_tasks=3)
    first = record(6, array_job_id=5, array_task_id=1, state="RUNNING", site_factor=None)
    for factor in (100, 200, 300, 400, 500):
        own.take_in([array, first])
        own.note([SetSiteFactor(5, factor)], {5: array, 6: first})
        array = replace(array, site_factor=factor)
    last = replace(array, array_task_id=3, array_tasks=1)  # the last task has the id of the array
    for factor in (600, 700, 800):
        own.take_in([last, first])
        own.note([SetSiteFactor(5, factor)], {5: last, 6: first})
        last = replace(last, site_factor=factor)
    again = replace(first, state="PENDING", site_factor=500)
    assert own.others([last, again]) == {}


def test_what_a_throttled_array_was_given_last_is_known_although_slurm_does_not_show_it(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 1000, 1300)
    full = record(5, site_factor=None, reason="JobArrayTaskLimit", array_tasks=3)
    held = record(6, site_factor=None, reason="JobHeldUser")
    for _restart in range(2):
        own = OwnFactors.of_daemon(path)
        own.take_in([full, held])
        assert own.throttled([full, held, record(7, site_factor=None, reason="JobArrayTaskLimit")]) == {5: 1300}
        assert own.others([full]) == {5: 1000}
        own.note([], {5: full})
    own.note([SetSiteFactor(5, 1000)], {5: full})
    assert own.throttled([full]) == {5: 1000}
    own.note_failed([SetSiteFactor(5, 1000)])  # so the former one is in force, or was
    assert own.throttled([full]) == {5: 1300}
    assert own.others([replace(full, site_factor=1000)]) == {5: 1000}


def test_what_an_admin_has_set_over_ours_is_not_taken_for_ours_once_slurm_does_not_show_it(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 0, 300)
    own = OwnFactors.of_daemon(path)
    own.take_in([record(5, site_factor=4000, array_tasks=3)])
    own.note([], {})
    for daemon in (own, OwnFactors.of_daemon(path)):
        full = record(5, site_factor=None, reason="JobArrayTaskLimit", array_tasks=2)
        daemon.take_in([full])
        assert daemon.throttled([full]) == {}
        assert daemon.others([full]) == {5: 4000}


def test_jobs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 0, 300)
    own = OwnFactors.of_daemon(path)
    own.take_in([record(6)])
    own.note([], {6: record(6)})
    assert path.read_text() == "{}"


def test_of_factors_that_slurm_does_not_show_those_are_told_in_which_ours_may_be(tmp_path: Path) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 1000, 1300)
    hidden = [
        record(5, site_factor=None, state="RUNNING"),
        record(6, site_factor=None),
        record(9, site_factor=None, array_job_id=5),
        record(7, site_factor=7),
        record(8, site_factor=None, state="COMPLETING"),
    ]
    assert OwnFactors.of_daemon(path).unseen(hidden) == {5: 1000, 9: 1000}
    assert OwnFactors.of_nobody_else(path).unseen(hidden) == {5: 0, 6: 0, 9: 0}
    own = OwnFactors.of_daemon(path)
    own.note([SetSiteFactor(5, 1000)], {5: hidden[0]})
    for daemon in (own, OwnFactors.of_daemon(path)):
        assert daemon.unseen(hidden) == {}
        assert daemon.others([record(5, site_factor=1300)]) == {5: 1000}


def test_where_all_factors_count_as_ours_those_not_shown_are_written_once_and_the_records_are_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "site_factors.json"
    noted(path, 5, 1000, 1300)
    noted(path, 7, 500, 800)
    hidden = {job_id: record(job_id, site_factor=None, state="RUNNING") for job_id in (5, 6)}
    own = OwnFactors.of_nobody_else(path)
    assert own.unseen(hidden.values()) == {5: 0, 6: 0}
    own.note([SetSiteFactor(5, 0), SetSiteFactor(6, 0)], hidden)
    assert OwnFactors.of_nobody_else(path).unseen(hidden.values()) == {}
    assert OwnFactors.of_daemon(path).unseen(hidden.values()) == {}
    assert OwnFactors.of_daemon(path).others([record(7, site_factor=800)]) == {7: 500}


@pytest.mark.parametrize("content", [None, "no json"])
def test_without_notes_a_daemon_keeps_what_it_finds_and_a_visitor_takes_it_for_ours(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "site_factors.json"
    if content is not None:
        path.write_text(content)
    assert OwnFactors.of_daemon(path).others([record(5, site_factor=300)]) == {5: 300}
    assert OwnFactors.of_visitor(path).others([record(5, site_factor=300)]) == {}


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = OwnFactors.of_daemon(tmp_path / "absent" / "site_factors.json")
    for factor in (300, 400):
        own.note([SetSiteFactor(5, factor)], {5: record(5, site_factor=0)})
    assert caplog.text.count("own site factors not saved") == 1
    assert own.others([record(5, site_factor=400)]) == {}
