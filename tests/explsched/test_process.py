"""Processes that outlive whoever starts them: recognised, and stopped, by pid and start time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1

import psutil
import pytest
from msgspec.structs import replace

from explsched import process
from explsched.process import ProcessId

DEAF = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'ready'); time.sleep(300)"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "300"])
    yield child
    child.kill()
    child.wait()


def identified(pid: int) -> ProcessId:
    found = process.identify(pid)
    assert found is not None
    return found


def test_the_start_time_is_that_of_the_kernel_and_not_of_the_clock() -> None:
    found = identified(os.getpid())
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert (found.pid, found.start_ticks) == (os.getpid(), int(fields[19]))
    assert found.is_alive()


def test_a_zombie_is_not_alive_and_has_no_identity(sleeper: subprocess.Popen[bytes]) -> None:
    found = identified(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not found.is_alive()
    assert process.identify(sleeper.pid) is None


def test_a_recycled_pid_is_neither_alive_nor_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    predecessor = replace(identified(sleeper.pid), start_ticks=identified(sleeper.pid).start_ticks - 1)
    assert not predecessor.is_alive()
    process.send(predecessor, SIGKILL)
    assert process.stop([predecessor]) == ()
    assert sleeper.poll() is None


def test_what_ignores_the_first_signal_gets_the_next(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    read, write = os.pipe()
    deaf = process.start([sys.executable, "-c", DEAF], tmp_path, os.environ, tmp_path / "log", write)
    assert os.read(read, 100) == b"ready"
    left = process.stop([identified(deaf.pid), identified(sleeper.pid)], [(SIGTERM, 0.1)])
    assert [one.pid for one in left] == [deaf.pid]
    assert process.stop(left, [(SIGTERM, 0.1), (SIGKILL, 60.0)]) == ()
    assert (sleeper.wait(), deaf.wait()) == (-SIGTERM, -SIGKILL)
    for end in (read, write):
        os.close(end)


def test_a_started_process_is_a_session_of_its_own_and_logs_to_its_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    shell = 'echo "$PWD $WORD"; echo error >&2; ps -o sid= -p $$'
    child = process.start(["sh", "-c", shell], tmp_path, {**os.environ, "WORD": "here"}, log)
    assert child.wait() == 0
    lines = log.read_text().split("\n")
    assert lines[:3] == ["before", f"{tmp_path} here", "error"]
    assert int(lines[3]) == child.pid


def test_a_process_is_known_by_its_pid_file_and_an_argument(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    pid_file = tmp_path / "pid"
    assert process.recorded(pid_file, "300") is None
    pid_file.write_text(f"{sleeper.pid}\n")
    assert process.recorded(pid_file, "300") == identified(sleeper.pid)
    assert process.recorded(pid_file, "30") is None
    for text in ("", "x", "-1", str(2**31 - 1)):
        pid_file.write_text(text)
        assert process.recorded(pid_file, "300") is None
    pid_file.write_text(str(sleeper.pid))
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process.recorded(pid_file, "300") is None


def test_a_pid_that_is_another_users_by_now_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As measured with hidepid=1."""

    def denied(found: psutil.Process) -> str:
        raise psutil.AccessDenied(found.pid)

    monkeypatch.setattr(psutil.Process, "status", denied)
    (tmp_path / "pid").write_text(str(os.getpid()))
    assert process.recorded(tmp_path / "pid", sys.executable) is None


def test_a_process_that_has_ended_is_signalled_in_vain(sleeper: subprocess.Popen[bytes]) -> None:
    found = identified(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    process.send(found, SIGUSR1)
    assert process.stop([found], [(signal.SIGTERM, 60.0)]) == ()
