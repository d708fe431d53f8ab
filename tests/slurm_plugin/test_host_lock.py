"""One daemon per cluster on a machine, real processes and the kernel's own names."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from explsched.process import started_s
from slurm_plugin.instance.holder import AnotherDaemonError
from slurm_plugin.instance.host_lock import HostLock, address, may_hold

CLUSTER = f"of test process {os.getpid()}"
HOLD = "import sys; from slurm_plugin.instance.host_lock import HostLock; lock = HostLock(); lock.take(sys.argv[1]); "


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock."""
    argv = [sys.executable, "-c", HOLD + "print('held', flush=True); sys.stdin.read()", CLUSTER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_of_the_first(other: subprocess.Popen[str]) -> None:
    for _ in range(3):
        with pytest.raises(AnotherDaemonError) as caught:
            HostLock().take(CLUSTER)
    told = str(caught.value)
    assert f"pid {other.pid} on host {socket.gethostname()}, since " in told
    assert CLUSTER in told


def test_another_cluster_has_another_lock(other: subprocess.Popen[str]) -> None:
    lock = HostLock()
    lock.take(f"{CLUSTER}, another one")
    lock.release()


def test_a_daemon_that_is_killed_leaves_nothing_behind(other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    lock = HostLock()
    lock.take(CLUSTER)
    lock.release()


def test_who_has_it_can_be_asked_however_often() -> None:
    lock = HostLock()
    lock.take(CLUSTER)
    for _ in range(200):
        with pytest.raises(AnotherDaemonError, match=f"pid {os.getpid()} "):
            HostLock().take(CLUSTER)
        lock.tend()
    lock.release()


def test_a_name_that_is_taken_by_no_daemon_keeps_nobody_from_steering(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(address(CLUSTER))
        lock = HostLock()
        lock.take(CLUSTER)
        lock.release()
    assert "its name is taken by a process that is not sexplschedd" in caplog.text


def test_only_root_believes_everybody() -> None:
    assert [may_hold(uid, 1000) for uid in (0, 1000, 1001)] == [True, True, False]
    assert may_hold(1001, 0)


def test_since_when_a_process_runs() -> None:
    began_s = started_s(os.getpid())
    assert began_s is not None
    told = subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    up_s = float(re.sub(r"\D", "", told.stdout))
    now_s = float(subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True).stdout)
    assert began_s == pytest.approx(now_s - up_s, abs=5)
    assert started_s(2**22 + 1) is None
