"""What the log tells of a pass."""

from __future__ import annotations

import logging

import pytest

from slurm_plugin.client.changes import SetGres, SetNodeCount
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
