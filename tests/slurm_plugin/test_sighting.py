"""What `status` says of the daemon, whatever lies in the spool."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from slurm_plugin import sighting
from slurm_plugin.instance.heartbeat import HEARTBEATS, Heartbeat
from slurm_plugin.instance.holder import Holder

THERE = Holder("there", 20, 2000.0)


def beat(spool: Path, holder: Holder) -> float:
    """A heartbeat; returns when it was written."""
    before = os.umask(0o077)
    try:
        Heartbeat(spool, "alpha", holder).beat(60.0)
    finally:
        os.umask(before)
    (path,) = (spool / HEARTBEATS).iterdir()
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert path.stat().st_mode & 0o777 == 0o644  # every user's `status` reads it
    return path.stat().st_mtime


def test_a_daemon_that_misses_its_time_is_noticed(tmp_path: Path) -> None:
    now_s = beat(tmp_path, THERE)
    assert sighting.notice(tmp_path, now_s + 59) is None
    says = "no daemon runs, the last heartbeat is 61 s old, from there: Slurm keeps its last order"
    assert sighting.notice(tmp_path, now_s + 61) == says


def test_a_heartbeat_from_before_a_clock_was_set_back_tells_of_no_daemon(tmp_path: Path) -> None:
    """`admin reset` asked to stop a daemon that was dead, until the clock had caught up."""
    now_s = beat(tmp_path, THERE)
    assert sighting.notice(tmp_path, now_s - 299) is None  # clocks of two hosts
    says = "no daemon runs, the last heartbeat is 86400 s ahead of the clock, from there: Slurm keeps its last order"
    assert sighting.notice(tmp_path, now_s - 86_400) == says


def test_a_daemon_of_this_host_that_was_killed_is_noticed_at_once(tmp_path: Path) -> None:
    here = Holder(socket.gethostname(), os.getpid(), 1000.0)
    now_s = beat(tmp_path, here)
    assert sighting.notice(tmp_path, now_s) is None
    now_s = beat(tmp_path, replace(here, pid=2**22 + 1))
    assert "no daemon runs" in str(sighting.notice(tmp_path, now_s))


def test_no_daemon_and_no_spool_are_noticed(tmp_path: Path) -> None:
    assert f"no daemon runs (no heartbeat in {tmp_path})" in str(sighting.notice(tmp_path, 0.0))
    assert f"the spool {tmp_path}/gone cannot be written (No such file or directory)" in str(
        sighting.notice(tmp_path / "gone", 0.0)
    )


def test_a_spool_that_cannot_be_looked_into_is_told(tmp_path: Path) -> None:
    """As one that is closed to this user; even root gets an error for a name that is too long."""
    closed = tmp_path / ("x" * 300)
    assert f"the spool {closed} cannot be written (File name too long)" in str(sighting.notice(closed, 0.0))
    assert sighting.last_heartbeat(closed) is None
    (tmp_path / "file").touch()
    assert "(is not a directory)" in str(sighting.notice(tmp_path / "file", 0.0))


def test_a_full_spool_is_not_taken_for_a_daemon_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(f_bavail=1, f_frsize=4096, f_blocks=1 << 21, f_favail=9, f_files=10, f_flag=0)
    monkeypatch.setattr("os.statvfs", lambda _path: full)
    says = str(sighting.notice(tmp_path, 0.0))
    assert f"the spool {tmp_path} cannot be written (its file system is full)" in says
    assert "no daemon" not in says


@pytest.mark.parametrize("content", [b"", b"{", b'{"holder": 3}', b"\xff\xfe", b"[" * 5000])
def test_a_file_that_is_no_heartbeat_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / HEARTBEATS).mkdir()
    (tmp_path / HEARTBEATS / "0.json").write_bytes(content)
    assert sighting.last_heartbeat(tmp_path) is None


def test_a_trap_in_the_spool_does_not_hang_the_command(tmp_path: Path) -> None:
    there = tmp_path / HEARTBEATS
    os.mkfifo(there)
    assert sighting.last_heartbeat(tmp_path) is None
    there.unlink()
    there.mkdir()
    os.mkfifo(there / "0.json")
    (there / "1.json").mkdir()
    (there / "2.json").symlink_to(there / "0.json")
    assert sighting.last_heartbeat(tmp_path) is None
    beat_s = Heartbeat(tmp_path, "alpha", THERE)
    beat_s.beat(60.0)
    assert sighting.last_heartbeat(tmp_path) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which needs root")
def test_a_heartbeat_of_any_user_counts_only_with_the_group_of_the_spool(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    Heartbeat(tmp_path, "alpha", THERE).beat(60.0)
    (beat,) = (tmp_path / HEARTBEATS).iterdir()
    for path in (beat, beat.parent):
        os.chown(path, nobody.pw_uid, -1)
        assert sighting.last_heartbeat(tmp_path) is None
        os.chown(beat, 0, -1)
    os.chown(tmp_path, -1, nobody.pw_gid)
    assert sighting.last_heartbeat(tmp_path) is not None
