"""What the log tells of a pass."""

from __future__ import annotations

import logging

import pytest

from sched_policy.plan import Plan
from slurm_plugin.client.changes import ChangeFailure, SetGres, SetNodeCount, TargetJob
from slurm_plugin.steering.pass_log import PassLog
from tests.slurm_kit import record
from tests.slurm_plugin.steering.test_reconcile import resized, seen


@pytest.mark.parametrize("change", [SetGres(5, "gpu:4"), SetNodeCount(5, 3, 6, 24)])
def test_a_resized_job_is_told_with_the_policys_reason(
    caplog: pytest.LogCaptureFixture, change: SetGres | SetNodeCount
) -> None:
    caplog.set_level(logging.INFO, "explsched")
    PassLog().note(seen(record(5)), resized(5, 3, 4), (change,), ())
    (told,) = [line for line in caplog.messages if line.startswith("resized ")]
    assert "job=5" in told
    assert 'why="why"' in told


PINNED = "explsched-group:node=n2&since=5"
TO_N1 = TargetJob(5, ("n1",), "explsched-group:node=n1&since=9")


@pytest.mark.parametrize(
    ("change", "fails", "node", "told"),
    [
        (None, 0, "n2", "placement verified"),
        (None, 0, "n1", "Slurm chose another node"),
        (TO_N1, 0, "n1", "placement verified"),
        (TO_N1, 0, "n2", "Slurm chose another node"),
        (TO_N1, 1, "n2", ""),  # it may have started before, or after Slurm had taken a part
        (TargetJob(5, (), ""), 0, "n1", ""),
    ],
)
def test_where_a_job_starts_is_compared_with_the_pin_that_the_pass_before_has_written(
    caplog: pytest.LogCaptureFixture, change: TargetJob | None, fails: int, node: str, told: str
) -> None:
    caplog.set_level(logging.INFO, "explsched")
    log, changes = PassLog(), (change,) if change else ()
    waits = record(5, admin_comment=PINNED, required_nodes=("n2",))
    log.note(seen(waits), Plan(), changes, [ChangeFailure(one, "refused") for one in changes[:fails]])
    log.note(seen(record(5, state="RUNNING", start_s=1.0, node_names=(node,))), Plan(), (), ())
    found = [line for line in caplog.messages if "placement verified" in line or "another node" in line]
    assert [line.startswith(told) for line in found] == [True] * bool(told)
