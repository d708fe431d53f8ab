"""How often the log tells the same, and what it does where it cannot be written."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from explsched.log import LastingFault, event, set_up

FULL = "/dev/full"
"""Every write fails as on a full disk."""

LOG = logging.getLogger("explsched.test")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger("explsched")
    level = root.level
    for name, value in (("handlers", []), ("propagate", True)):
        monkeypatch.setattr(root, name, value)
    yield
    for handler in root.handlers:
        with suppress(OSError):
            handler.close()
    root.setLevel(level)


def test_a_fault_that_lasts_is_told_every_ten_minutes() -> None:
    fault = LastingFault()
    assert not fault.end()
    told_s = [now_s for now_s in range(1000, 2300, 15) if fault.level("no answer", now_s) == logging.ERROR]
    assert told_s == [1000, 1600, 2200]
    assert fault.level("refused", 2300) == logging.ERROR
    assert fault.level("refused", 2301) == logging.DEBUG
    assert fault.end()
    assert fault.level("refused", 2302) == logging.ERROR


def test_a_log_on_a_full_disk_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback for each event went to the journal, on the disk that is full."""
    set_up("info", FULL)
    for number in range(6):
        event(LOG, logging.WARNING, "something", number=number)
    assert capsys.readouterr().err == f"log file {FULL} not written: No space left on device\n"


def test_a_log_whose_disk_is_full_can_be_reopened(tmp_path: Path) -> None:
    """Closing the old one raised what it could not write, and the daemon ended."""
    set_up("info", FULL)
    event(LOG, logging.WARNING, "lost")
    set_up("info", str(tmp_path / "log"))
    event(LOG, logging.WARNING, "kept")
    assert (tmp_path / "log").read_text().endswith("kept\n")
    assert FULL not in map(os.path.realpath, Path("/proc/self/fd").iterdir())


def test_a_disk_that_fills_again_is_told_again(tmp_path: Path) -> None:
    """In a process of its own: its limit on the size of files stands for the disk."""
    code = """
import logging, resource, signal, sys
from explsched.log import event, set_up

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
set_up("info", sys.argv[1])
for size in (0, resource.RLIM_INFINITY, 0):
    room(size)
    for _ in range(2):
        event(logging.getLogger("explsched.test"), logging.WARNING, "something")
room(resource.RLIM_INFINITY)
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "log")]
    told = subprocess.run(argv, check=True, capture_output=True, text=True).stderr
    assert told == f"log file {tmp_path}/log not written: File too large\n" * 2


def test_a_mistake_in_an_event_keeps_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", str(tmp_path / "log"))
    LOG.warning("%d", "no number")
    assert "TypeError" in capsys.readouterr().err
