"""One daemon per cluster across hosts that share a spool."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_plugin.instance import AnotherDaemonError, Heartbeat, Holder
from slurm_plugin.sighting import last_heartbeat

CLUSTER = "alpha"
HERE = Holder("here", 10, 1000.0)
THERE = Holder("there", 20, 2000.0)


def beating(spool: Path, us: Holder, cluster: str = CLUSTER) -> Heartbeat:
    heart = Heartbeat(spool, cluster, us)
    heart.beat(60.0)
    return heart


def file_of(spool: Path) -> Path:
    (path,) = spool.iterdir()
    return path


def aged(path: Path, age_s: float) -> None:
    written_s = path.stat().st_mtime - age_s
    os.utime(path, (written_s, written_s))


def test_a_daemon_on_another_host_is_named(tmp_path: Path) -> None:
    beating(tmp_path, THERE)
    with pytest.raises(AnotherDaemonError, match="cluster alpha: pid 20 on host there, since 1970-01-01T"):
        beating(tmp_path, HERE)
    assert len(list(tmp_path.iterdir())) == 1  # nothing of the second one is left


@pytest.mark.parametrize("us", [HERE, replace(THERE, pid=21)])
def test_two_clusters_have_no_spool_in_common(tmp_path: Path, us: Holder) -> None:
    """Job 17 of one would be told what job 17 of the other reports."""
    first = beating(tmp_path, THERE)
    with pytest.raises(AnotherDaemonError, match=f"{tmp_path}: also the daemon of another cluster .*pid 20 on host"):
        beating(tmp_path, us, cluster="beta")
    first.beat(60.0)
    first.stop()
    beating(tmp_path, us, cluster="beta")


def test_a_daemon_that_has_not_been_heard_of_for_long_is_dead(tmp_path: Path) -> None:
    first = beating(tmp_path, THERE)
    aged(file_of(tmp_path), 50.0)
    with pytest.raises(AnotherDaemonError):
        beating(tmp_path, HERE)
    aged(file_of(tmp_path), 30.0)
    beating(tmp_path, HERE)
    with pytest.raises(AnotherDaemonError, match="pid 10 on host here"):  # it comes back, and sees who took over
        first.beat(60.0)


def test_a_daemon_of_this_host_is_left_to_the_lock(tmp_path: Path) -> None:
    beating(tmp_path, HERE)
    beating(tmp_path, replace(HERE, pid=11))


def test_a_daemon_that_stops_takes_its_heartbeat_away(tmp_path: Path) -> None:
    beating(tmp_path, HERE).stop()
    assert list(tmp_path.iterdir()) == []
    heart = beating(tmp_path, HERE)
    aged(file_of(tmp_path), 100.0)
    beating(tmp_path, THERE)
    heart.stop()
    with pytest.raises(AnotherDaemonError, match="there"):
        beating(tmp_path, HERE)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_users_cannot_pretend_to_be_a_daemon(tmp_path: Path) -> None:
    beating(tmp_path, THERE)
    os.chown(file_of(tmp_path), 65534, 65534)
    beating(tmp_path, HERE)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_a_name_that_another_user_has_taken_keeps_no_daemon_quiet(open_tmp: Path) -> None:
    """One left by root's daemon that was killed, or put there: in a spool with the sticky bit it cannot be replaced."""
    spool = open_tmp / "heartbeats"
    spool.mkdir()
    spool.chmod(0o3777)
    beating(spool, THERE)
    left = file_of(spool)
    aged(left, 100.0)
    try:
        os.seteuid(65534)
        first = beating(spool, HERE)
        first.beat(60.0)
        assert len(list(spool.iterdir())) == 2
        with pytest.raises(AnotherDaemonError, match="host here"):
            beating(spool, THERE)
        seen = last_heartbeat(spool)
        assert seen is not None
        assert seen.holder == HERE
        first.stop()
    finally:
        os.seteuid(0)
    assert list(spool.iterdir()) == [left]


@pytest.mark.parametrize("text", ["", "{", '{"holder": 5}', "\xff"])
def test_what_is_no_heartbeat_is_written_over(tmp_path: Path, text: str) -> None:
    beating(tmp_path, THERE)
    file_of(tmp_path).write_text(text)
    beating(tmp_path, HERE)
    with pytest.raises(AnotherDaemonError, match="here"):
        beating(tmp_path, THERE)


def test_a_spool_that_cannot_be_written_to_keeps_nobody_from_steering(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heart = Heartbeat(tmp_path / "nowhere", CLUSTER, HERE)
    heart.beat(60.0)
    heart.beat(60.0)
    heart.stop()
    assert caplog.text.count("a second daemon on another host would not be noticed") == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    beating(tmp_path, THERE)
    path = file_of(tmp_path)
    path.rename(tmp_path.parent / "elsewhere.json")
    path.symlink_to(tmp_path.parent / "elsewhere.json")
    Heartbeat(tmp_path, CLUSTER, HERE).beat(60.0)
    assert path.is_symlink()


def test_a_file_system_that_hangs_holds_up_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    monkeypatch.setattr("slurm_plugin.instance.PATIENCE_S", 0.05)

    @contextmanager
    def hanging(_path: Path, **_mode: int) -> Iterator[io.BytesIO]:
        answers.wait()
        raise OSError(errno.ESTALE, "it has come back")
        yield

    with monkeypatch.context() as hung:
        hung.setattr("slurm_plugin.instance.replacing", hanging)
        heart = Heartbeat(tmp_path, CLUSTER, HERE)
        for _ in range(3):
            heart.beat(60.0)
        heart.stop()
    assert caplog.text.count("no answer for") == 1
    answers.set()
    while not list(tmp_path.iterdir()):
        heart.beat(60.0)  # as soon as that call has come back


def test_on_a_full_disk_a_living_daemon_is_seen_and_stays_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.FileIO):
        def write(self, _content: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def on_full_disk(path: Path, **_mode: int) -> Iterator[io.FileIO]:
        draft = path.with_suffix(".draft")
        try:
            with Full(draft, "w") as file:
                yield file
        finally:
            draft.unlink()

    first = beating(tmp_path, THERE)
    monkeypatch.setattr("slurm_plugin.instance.replacing", on_full_disk)
    aged(file_of(tmp_path), 50.0)
    first.beat(60.0)
    aged(file_of(tmp_path), 50.0)
    with pytest.raises(AnotherDaemonError, match="host there"):
        beating(tmp_path, HERE)
    aged(file_of(tmp_path), 50.0)
    beating(tmp_path, HERE)  # it has been dead for long, and its file does not become younger by ours
    beating(tmp_path, HERE)
