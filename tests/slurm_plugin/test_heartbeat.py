"""The daemon's heartbeat: what `status` says of it, whatever lies in the spool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_plugin import heartbeat
from slurm_plugin.heartbeat import FILE, Heartbeat

ALIVE = Heartbeat("node1", 17, 1000.0, 15.0, "srsf")


def test_a_written_heartbeat_is_read_by_every_user(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        heartbeat.write(tmp_path, ALIVE)
    finally:
        os.umask(before)
    assert heartbeat.read(tmp_path) == ALIVE
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("heartbeat_", "age_s", "says"),
    [
        (ALIVE, 44.0, None),
        (ALIVE, 46.0, "the daemon on node1 has been silent for 46 s: Slurm keeps its last order"),
        (Heartbeat("node1", 17, 1000.0, 300.0, "srsf"), 800.0, None),  # slurmctld is busy, passes are rare
        (Heartbeat("node1", 17, 1000.0, 1.0, "srsf"), 29.0, None),
    ],
)
def test_a_daemon_that_misses_passes_is_noticed(
    tmp_path: Path, heartbeat_: Heartbeat, age_s: float, says: str | None
) -> None:
    heartbeat.write(tmp_path, heartbeat_)
    assert heartbeat.notice(tmp_path, 1000.0 + age_s) == says


def test_no_daemon_and_no_spool_are_noticed(tmp_path: Path) -> None:
    assert f"no daemon runs (there is no {tmp_path}/daemon.json)" in str(heartbeat.notice(tmp_path, 0.0))
    assert f"the spool {tmp_path}/gone is missing" in str(heartbeat.notice(tmp_path / "gone", 0.0))


@pytest.mark.parametrize("content", [b"", b"{", b'{"host": 3}', b"\xff\xfe", b"[" * 5000])
def test_a_file_that_is_no_heartbeat_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert heartbeat.read(tmp_path) is None


def test_a_trap_in_the_spool_does_not_hang_the_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert heartbeat.read(tmp_path) is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert heartbeat.read(tmp_path) is None


def test_only_the_own_heartbeat_is_removed(tmp_path: Path) -> None:
    heartbeat.write(tmp_path, ALIVE)
    heartbeat.remove(tmp_path)
    assert heartbeat.read(tmp_path) == ALIVE
    heartbeat.write(tmp_path, Heartbeat.now(1000.0, 15.0, "srsf"))
    heartbeat.remove(tmp_path)
    heartbeat.remove(tmp_path)
    assert not (tmp_path / FILE).exists()
