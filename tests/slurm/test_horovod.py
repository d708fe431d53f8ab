"""Horovod in its template on a real cluster, as scripts/horovod builds it.

In a file of its own, since a file's tests run one after the other: the build takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import ROOT
from tests.slurm.trainings import loses_nothing_when_preempted

pytestmark = [pytest.mark.slurm, pytest.mark.long]
BUILT = ROOT / "build/horovod"
TRAINING = Path(__file__).with_name("horovod_training.py")


@pytest.fixture
def python() -> Path:
    """A Python with Horovod and all that this one has; built once for all runs of the tests, beside other tests."""
    if find_spec("torch") is None:
        pytest.skip("Horovod needs PyTorch (extra `demo`)")
    found = BUILT / "bin/python"
    if not (BUILT / "done").exists():
        venv.create(BUILT, clear=True, with_pip=True)
        ours = sysconfig.get_path("purelib")
        theirs = Path(sysconfig.get_path("purelib", vars={"base": str(BUILT)}))
        (theirs / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        gently = ["nice", "-n", "19", ROOT / "scripts/horovod", found]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # CMake
        done = subprocess.run(
            gently, env={**os.environ, "PATH": path, "OPTIMIZATION": "-O0"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (BUILT / "done").touch()
    return found


def test_a_preempted_job_loses_nothing_since_its_checkpoint(python: Path, cluster: Cluster, open_tmp: Path) -> None:
    loses_nothing_when_preempted(cluster, open_tmp, "horovod", ["python", str(TRAINING)], python)
