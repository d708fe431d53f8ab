"""Where no thread can be started the daemon says so and goes on; it does not hang."""

from __future__ import annotations

import _thread
import subprocess
import sys
from collections.abc import Callable

import pytest

from slurm_plugin.client.process import BoundedCall

_WITHOUT_MEMORY = """
import resource
from pathlib import Path
from explsched import log
from explsched.errors import SlurmError
from slurm_plugin.client.cli import CliClient
from slurm_plugin.observation.spool import ProgressSpool

log.set_up("info", None)
spool, client = ProgressSpool(Path("/tmp")), CliClient()
in_use = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (in_use + (2 << 20), resource.RLIM_INFINITY))
print(spool.read({1: 0}, 0.0))
try:
    client.look()
except SlurmError as error:
    print(error)
"""


def test_without_memory_for_a_thread_the_daemon_goes_on_and_says_so() -> None:
    argv = [sys.executable, "-c", _WITHOUT_MEMORY]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert "progress not read, the last holds" in done.stderr
    assert "can't start new thread: memory or processes are used up" in done.stderr
    told = "no thread to ask Slurm with: can't start new thread; memory or processes are used up"
    assert done.stdout.splitlines() == ["{}", told]


def test_a_thread_that_never_begins_keeps_nobody_from_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that finds no memory for its first steps."""

    def never(_function: Callable[[], object], _arguments: tuple[()]) -> int:
        return 0

    calls: list[int] = []
    bounded = BoundedCall(0.05)
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", never)
        assert not bounded.run(lambda: calls.append(1))
    bounded.patience_s = 30.0
    assert bounded.run(lambda: calls.append(2))
    assert calls == [2]


def test_a_thread_that_begins_too_late_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers of one spool, or two writers of one file, would run at a time."""
    begin_late: list[Callable[[], object]] = []

    def later(function: Callable[[], object], _arguments: tuple[()]) -> int:
        begin_late.append(function)
        return 0

    calls: list[int] = []
    bounded = BoundedCall(0.05)
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", later)
        assert not bounded.run(lambda: calls.append(1))
    begin_late[0]()
    bounded.patience_s = 30.0
    assert bounded.run(lambda: calls.append(2))
    assert calls == [2]
