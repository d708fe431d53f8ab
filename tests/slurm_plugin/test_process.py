"""Commands that are ended once they have told what counts."""

from __future__ import annotations

import os

import pytest

from explsched.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.client.process import run_until

AGAIN = "trying again"


def told(script: str, timeout_s: float = 60.0) -> tuple[int, str]:
    answer = run_until(AGAIN, ["sh", "-c", script], timeout_s, os.environ)
    return answer.returncode, answer.err


def test_a_command_is_ended_at_the_words() -> None:
    assert told(f"echo 'sent, {AGAIN}' >&2; exec sleep 600") == (-9, f"sent, {AGAIN}\n")


def test_a_command_may_end_before() -> None:
    assert told("echo refused >&2; exit 3") == (3, "refused\n")


@pytest.mark.parametrize("script", ["exec sleep 600", "exec sleep 600 2>&-"])
def test_no_command_is_waited_for_without_end(script: str) -> None:
    with pytest.raises(SlurmUnreachableError, match=r"sh: no answer from slurmctld within 0.1 s"):
        told(script, 0.1)


def test_a_command_that_is_missing_is_told() -> None:
    with pytest.raises(SlurmError, match="nosuch is not installed"):
        run_until(AGAIN, ["nosuch"], 60.0, os.environ)
