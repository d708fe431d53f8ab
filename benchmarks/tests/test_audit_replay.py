"""What is taken for a change in slurmctld's log, and what a difference to the audit file is."""

from __future__ import annotations

from benchmarks.audit_replay import Written, compared
from slurm_plugin.audit_file import AuditEntry

LOG = """\
[2026-11-23T01:16:28.378] sched: _update_job: setting AdinPrioFactor to 2147483571 for JobId=3
[2026-11-23T01:16:28.378] _slurm_rpc_update_job: complete JobId=3 uid=0 usec=584
[2026-11-23T01:16:28.380] _update_job: setting admin_comment to JS1:7 and more for JobId=3
[2026-11-23T01:16:28.526] sched: _update_job: setting reservation to '' for JobId=3
[2026-11-23T01:16:28.675] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=2 uid 0
[2026-11-23T01:16:29.795] Requeuing JobId=2
"""
ENTRIES = (
    AuditEntry(1.0, 3, "SiteFactor", 0, -77, "srsf", "order", ""),
    AuditEntry(1.0, 3, "Reservation", "x", "", "srsf", "lease", ""),
    AuditEntry(1.0, 2, "Signal", "", "USR1", "srsf", "preemption", "", refused="it has ended"),
    AuditEntry(2.0, 2, "JobState", "RUNNING", "PENDING", "srsf", "preemption", ""),
)
BY_HAND = (Written(3, "AdminComment", "JS1:7 and more"),)


def test_equal_lists_differ_in_nothing() -> None:
    found = compared(LOG.splitlines(), ENTRIES, BY_HAND)
    assert (found["missing"], found["extra"]) == ([], [])
    assert found["slurm"] == {"SiteFactor": 1, "AdminComment": 1, "Reservation": 1, "Kill": 1, "Requeue": 1}


def test_a_change_that_nobody_wrote_down_is_missing_and_one_that_never_was_is_extra() -> None:
    found = compared(LOG.splitlines()[:3], ENTRIES[:2], ())
    assert found["missing"] == [str(BY_HAND[0])]
    assert found["extra"] == [str(Written(3, "Reservation", ""))]
