"""The soak of groups under fire, in short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_plugin.devcluster.sharing import PER_GPU, Native
from wrappers import kernel_manager
from wrappers.kernel_manager import NotInstalledError

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "build" / "native"


def test_no_job_is_lost_when_members_managers_and_the_daemon_are_killed(needs_slurm: None) -> None:
    """A short soak; `python -m benchmarks.group_kills` is the long one."""
    try:
        Native.of(NATIVE, kernel_manager.library(os.environ), kernel_manager.manager(os.environ))
    except (NotInstalledError, FileNotFoundError) as error:
        pytest.skip(str(error))
    argv = [sys.executable, "-m", "benchmarks.group_kills", "--kills=10", "--work=8", f"--build={NATIVE}", "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kills"], found["jobs_lost"], found["peers_hurt"]) == (10, 0, 0)
    assert (found["pinned_afterwards"], found["managers_left"]) == (0, 0)
    assert found["groups_verified"] == found["jobs"] / PER_GPU
