"""State, events and the lock, with the disk full and the holder killed."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference_gateway.control import state
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.state import Attempts, EventLog, Memory, ServiceMemory
from inference_gateway.errors import GatewayError

FULL = Path("/dev/full")


def test_saved_state_is_read_back_unchanged(tmp_path: Path) -> None:
    replica = Replica("chat", "chat-1", "g", Phase.DRAINING, 1.5, 2.5, job_id=7, ends_s=None, reason="é\n")
    memory = Memory((replica,), {"chat": ServiceMemory(Attempts(2, 3.0, 1), (4.0, 5.0), generation="g")})
    path = tmp_path / "state.json"
    assert state.save(path, memory)
    assert state.read(path, Memory) == memory
    assert [found.name for found in tmp_path.iterdir()] == ["state.json"]


def test_a_failed_write_keeps_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    state.save(path, Memory())
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not state.save(path, Memory((), {"chat": ServiceMemory()}))
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"replicas": 1}', b'{"replicas": [{"service": "x"}]}', b'{"replicas": [{"service": "\xff"}]}'],
)
def test_a_damaged_state_file_is_ignored(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "s").write_bytes(text)
    assert state.read(tmp_path / "s", Memory) is None


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_events_lost_to_a_full_disk_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.symlink_to(FULL)
    events = EventLog(path)
    events.note("one", "chat")
    events.note("two", "chat")
    path.unlink()
    events.note("three", "chat", reason="a\nb", nothing=None)
    (line,) = path.read_text().splitlines()
    found = json.loads(line)
    assert (found["event"], found["service"], found["reason"], found["lost_before"]) == ("three", "chat", "a\nb", 2)
    assert "nothing" not in found


def test_an_event_after_a_line_that_a_full_disk_has_cut_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "events"
    events = EventLog(path)
    events.note("one")
    path.write_bytes(path.read_bytes() + b'{"time": ')
    for name in ("two", "three"):
        events.note(name)
    whole, torn, *after = path.read_text().splitlines()
    assert (json.loads(whole)["event"], torn) == ("one", '{"time": ')
    assert [json.loads(line)["event"] for line in after] == ["two", "three"]


def test_of_two_gateways_that_rotate_at_once_none_loses_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events"
    first, second = EventLog(path), EventLog(path)
    path.write_text("x" * (16 << 20) + "\n")
    rename = Path.replace

    def meanwhile(source: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", rename)
        second.note("second")
        renamed = rename(source, target)
        second.note("third")
        return renamed

    monkeypatch.setattr(Path, "replace", meanwhile)
    first.note("first")
    first.note("fourth")
    old = (tmp_path / "events.1").read_text().splitlines()
    found = [json.loads(line) for line in (*old[1:], *path.read_text().splitlines())]
    assert [line["event"] for line in found] == ["first", "second", "third", "fourth"]
    assert not any("lost_before" in line for line in found)


def test_only_one_holds_the_lock_and_a_killed_holder_loses_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from inference_gateway.control import state\n"
        "with state.locked(Path(sys.argv[1])) as ours: print(ours, flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    with state.locked(path) as ours:
        assert not ours
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    deadline = time.monotonic() + 60
    while True:
        with state.locked(path) as ours:
            if ours:
                break
        assert time.monotonic() < deadline
    with path.open() as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back after the block


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Lustre that is mounted without `-o flock`."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    with pytest.raises(GatewayError, match=r"gone/lock: No such file"), state.locked(tmp_path / "gone" / "lock"):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(GatewayError, match=r"lock: cannot be locked with flock: Function"),
        state.locked(tmp_path / "lock"),
    ):
        pass
