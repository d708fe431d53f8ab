"""Slurm forgets why a job waits when its site factor is written; nobody would make room for it until it is tested."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from slurm_plugin.client.changes import AttachReservation, Change, SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.hidden_reasons import REASON_HOLDS_S, HiddenReasons
from tests.slurm_kit import record

NOW_S = 10_000.0
WAITS = record(1, reason="Resources", priority=1000, natives=(1000,))
WRITTEN = record(1, reason="None", priority=1500, natives=(1000,), site_factor=500)


def reason_after(*seen: SlurmJob, change: Change | None = None, at_s: float = 2.0) -> str:
    """Why job 1 waits in the last of what passes saw, where the first was followed by a write; 2 s later, or `at_s`."""
    hidden = HiddenReasons()
    hidden.restored(seen[:1], NOW_S)
    hidden.note((change or SetSiteFactor(1, 500),), {job.job_id: job for job in seen[:1]})
    for record_ in seen[1:]:
        (found,) = hidden.restored((record_,), NOW_S + at_s)
    return found.reason


def test_a_reason_outlives_our_write() -> None:
    assert reason_after(WAITS, WRITTEN) == "Resources"
    assert reason_after(WAITS, WRITTEN, WRITTEN) == "Resources"


def test_also_if_slurm_has_computed_its_age_with_our_write() -> None:
    assert reason_after(replace(WAITS, age_lag=40), replace(WRITTEN, natives=(1040,))) == "Resources"


def test_what_slurm_says_since_counts() -> None:
    said = record(1, reason="AssocGrpGRES", priority=1500)
    assert reason_after(WAITS, said) == "AssocGrpGRES"
    assert reason_after(WAITS, said, WRITTEN) == "None"  # that it was not our write that hid


def test_not_for_longer_than_slurm_takes_to_test_it_again() -> None:
    assert reason_after(WAITS, WRITTEN, at_s=REASON_HOLDS_S) == "Resources"
    assert reason_after(WAITS, WRITTEN, at_s=REASON_HOLDS_S + 1) == "None"


def test_many_writes_do_not_make_it_last_longer() -> None:
    hidden = HiddenReasons()
    hidden.restored((WAITS,), NOW_S)
    for elapsed_s in range(10, 70, 10):
        hidden.note((SetSiteFactor(1, elapsed_s),), {1: WAITS})
        (found,) = hidden.restored((WRITTEN,), NOW_S + elapsed_s)
        assert found.reason == "Resources"
    hidden.note((SetSiteFactor(1, 1),), {1: WAITS})
    assert hidden.restored((WRITTEN,), NOW_S + 70)[0].reason == "None"


@pytest.mark.parametrize(
    "changed",
    [
        {"features": "a100"},
        {"gpus": 8},
        {"priority": 0},
        {"nice": 5},
        {"partition": "other"},
        {"reservation": "maintenance"},
        {"restarts": 1},
    ],
)
def test_a_job_that_somebody_changed_is_tested_first(changed: dict[str, Any]) -> None:
    fields = {"reason": "None", "priority": 1500, "natives": (1000,), "site_factor": 500}
    assert reason_after(WAITS, record(1, **{**fields, **changed})) == "None"


def test_others_changes_hide_a_reason_for_good() -> None:
    assert reason_after(WAITS, WRITTEN, change=SetSiteFactor(2, 500)) == "None"
    assert reason_after(WAITS, WRITTEN, change=AttachReservation(1, "explsched_1")) == "None"


def test_what_was_never_tested_is_not_known() -> None:
    assert reason_after(record(1, reason="None"), WRITTEN) == "None"


def test_a_running_job_has_none_to_remember() -> None:
    assert reason_after(WAITS, record(1, state="RUNNING", reason="None")) == "None"


def test_an_arrays_limit_outlives_our_write_unless_a_task_has_ended() -> None:
    """Then Slurm is to test the array again: once for each task that it starts."""
    full = record(1, reason="JobArrayTaskLimit", site_factor=None, array_tasks=9, array_limit=1)
    after = replace(full, reason="None", site_factor=0, natives=(1000,))
    hidden, found = HiddenReasons(), []
    for tasks, throttled in ((9, 9), (9, 8), (9, 8), (8, 7), (8, 7)):
        hidden.restored((replace(full, array_tasks=tasks),), NOW_S)
        hidden.note((SetSiteFactor(1, 0),), {1: replace(full, array_tasks=tasks, throttled_tasks=throttled)})
        found.append(hidden.restored((replace(after, array_tasks=tasks),), NOW_S)[0].reason)
    assert found == ["JobArrayTaskLimit", "None", "JobArrayTaskLimit", "None", "JobArrayTaskLimit"]
