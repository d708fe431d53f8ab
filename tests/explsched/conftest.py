"""What tests of several modules need."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job's environment and its progress file. After a failure Lightning restores the handlers that it found."""
    before = signal.getsignal(signal.SIGUSR1)
    path = tmp_path / "progress.jsonl"
    monkeypatch.setenv("EXPLSCHED_PROGRESS_FILE", str(path))
    for name in ("SLURM_RESTART_COUNT", "EXPLSCHED_METRIC", "EXPLSCHED_CHECKPOINT"):
        monkeypatch.delenv(name, raising=False)
    yield path
    signal.signal(signal.SIGUSR1, before)
