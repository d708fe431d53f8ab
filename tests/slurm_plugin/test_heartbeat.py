"""One daemon per cluster across hosts that share a spool."""

from __future__ import annotations

import errno
import io
import json
import os
import pwd
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from slurm_plugin.instance.heartbeat import HEARTBEATS, Heartbeat
from slurm_plugin.instance.holder import AnotherDaemonError, Holder
from slurm_plugin.sighting import last_heartbeat
from tests.slurm_plugin.other_user import user

CLUSTER = "alpha"
HERE = Holder("here", 10, 1000.0)
THERE = Holder("there", 20, 2000.0)


def beating(spool: Path, us: Holder, cluster: str = CLUSTER) -> Heartbeat:
    heart = Heartbeat(spool, cluster, us)
    heart.beat(60.0)
    return heart


def file_of(spool: Path) -> Path:
    (path,) = (spool / HEARTBEATS).iterdir()
    return path


def aged(path: Path, age_s: float) -> None:
    written_s = path.stat().st_mtime - age_s
    os.utime(path, (written_s, written_s))


def test_a_daemon_on_another_host_is_named(tmp_path: Path) -> None:
    beating(tmp_path, THERE)
    with pytest.raises(AnotherDaemonError, match="cluster alpha: pid 20 on host there, since 1970-01-01T"):
        beating(tmp_path, HERE)
    file_of(tmp_path)  # nothing of the second one is left


@pytest.mark.parametrize("us", [HERE, replace(THERE, pid=21)])
def test_two_clusters_have_no_spool_in_common(tmp_path: Path, us: Holder) -> None:
    """Job 17 of one would be told what job 17 of the other reports."""
    first = beating(tmp_path, THERE)
    with pytest.raises(AnotherDaemonError, match=f"{tmp_path}: also the daemon of another cluster .*pid 20 on host"):
        beating(tmp_path, us, cluster="beta")
    first.beat(60.0)
    first.stop()
    beating(tmp_path, us, cluster="beta")


@pytest.mark.parametrize("us", [HERE, replace(THERE, pid=21)])
def test_a_cluster_whose_slurmctld_has_moved_is_no_other_cluster(tmp_path: Path, us: Holder) -> None:
    """The standby told admins to give it a spool of its own, where it would not see the jobs' reports."""
    beating(tmp_path, THERE, cluster="alpha/c1/6817")
    with pytest.raises(
        AnotherDaemonError, match="another sexplschedd steers cluster alpha/c2/6817: pid 20 on host there"
    ):
        beating(tmp_path, us, cluster="alpha/c2/6817")
    beating(tmp_path, THERE, cluster="alpha/c2/6817")  # that one itself, when it has been told to reload
    for path in (tmp_path / HEARTBEATS).iterdir():
        aged(path, 100.0)
    beating(tmp_path, us, cluster="alpha/c2/6817")


def test_a_daemon_that_has_not_been_heard_of_for_long_is_dead(tmp_path: Path) -> None:
    first = beating(tmp_path, THERE)
    aged(file_of(tmp_path), 50.0)
    with pytest.raises(AnotherDaemonError):
        beating(tmp_path, HERE)
    aged(file_of(tmp_path), 30.0)
    beating(tmp_path, HERE)
    with pytest.raises(AnotherDaemonError, match="pid 10 on host here"):  # it comes back, and sees who took over
        first.beat(60.0)


def test_a_heartbeat_from_before_a_clock_was_set_back_keeps_no_standby_away(tmp_path: Path) -> None:
    """The daemon that had written it was dead, and the standby refused to steer until the clock had caught up."""
    beating(tmp_path, THERE)
    aged(file_of(tmp_path), -86_400.0)
    beating(tmp_path, HERE)


def test_a_daemon_of_this_host_is_left_to_the_lock(tmp_path: Path) -> None:
    beating(tmp_path, HERE)
    beating(tmp_path, replace(HERE, pid=11))


def test_a_daemon_that_stops_takes_its_heartbeat_away(tmp_path: Path) -> None:
    beating(tmp_path, HERE).stop()
    assert list((tmp_path / HEARTBEATS).iterdir()) == []
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


def noted(call: Callable[..., Any], paths: list[str]) -> Callable[..., Any]:
    def noting(path: object, *rest: object, **more: object) -> Any:
        paths.append(str(path))
        return call(path, *rest, **more)

    return noting


@pytest.fixture
def spool(open_tmp: Path) -> Path:
    """As the package makes it, for a daemon of the user `daemon`."""
    path = open_tmp / f"heartbeats-{os.urandom(4).hex()}"
    path.mkdir()
    os.chown(path, 0, pwd.getpwnam("daemon").pw_gid)
    path.chmod(0o3777)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_a_heartbeat_that_roots_daemon_has_left_keeps_the_daemons_user_from_nothing(spool: Path) -> None:
    beating(spool, THERE)
    aged(file_of(spool), 100.0)
    with user(pwd.getpwnam("daemon").pw_uid):
        first = beating(spool, HERE)
        first.beat(60.0)
        with pytest.raises(AnotherDaemonError, match="host here"):
            beating(spool, THERE)
    with pytest.raises(AnotherDaemonError, match="host here"):
        beating(spool, THERE)  # root's
    seen = last_heartbeat(spool)
    assert seen is not None
    assert seen.holder == HERE
    first.stop()
    assert list((spool / HEARTBEATS).iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_what_users_put_into_the_spool_is_not_even_looked_at(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million names took longer than the daemon has patience."""
    daemon = pwd.getpwnam("daemon").pw_uid
    with user(daemon):
        first = beating(spool, THERE)
    with user(65534):
        (spool / ".sexplschedd-1.json").touch()
    looked: list[str] = []
    with monkeypatch.context() as noting:
        for name in ("listdir", "scandir", "open"):
            noting.setattr(os, name, noted(getattr(os, name), looked))
        with user(daemon):
            first.beat(60.0)
            with pytest.raises(AnotherDaemonError):
                beating(spool, HERE)
            first.stop()
        last_heartbeat(spool)
    assert str(spool / HEARTBEATS) in looked
    assert {str(spool), str(spool / ".sexplschedd-1.json")}.isdisjoint(looked)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_who_has_taken_the_name_of_the_directory_is_told(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    with user(65534):
        beating(spool, THERE)
    with user(pwd.getpwnam("daemon").pw_uid):
        beating(spool, HERE)
    beating(spool, HERE)
    assert caplog.text.count(".sexplschedd in it belongs to uid 65534: have root remove it") == 2
    assert last_heartbeat(spool) is None


def test_a_daemon_of_release_0_1_is_seen(tmp_path: Path) -> None:
    beating(tmp_path, THERE)
    path = file_of(tmp_path)
    path.rename(tmp_path / f"{HEARTBEATS}-{path.name}")
    with pytest.raises(AnotherDaemonError, match="host there"):
        beating(tmp_path, HERE)


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


class Mount:
    """A spool that is a mount point, and what is mounted there: here it is moved there and away."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.spool = path / "progress"
        self._mounted, self._below = path / "mounted", path / "below"
        self._mounted.mkdir()
        self.spool.mkdir()
        self._is_there = False
        patch.setattr(Path, "is_mount", lambda at: at == self.spool and self._is_there)

    def mount(self) -> None:
        self.spool.rename(self._below)
        self._mounted.rename(self.spool)
        self._is_there = True

    def unmount(self) -> None:
        self.spool.rename(self._mounted)
        self._below.rename(self.spool)
        self._is_there = False


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mount:
    return Mount(tmp_path, monkeypatch)


def test_a_mount_point_without_its_mount_is_not_taken_for_the_spool(
    mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    """The standby saw an old heartbeat and steered, and the first daemon said nothing."""
    mount.mount()
    first = beating(mount.spool, THERE)
    mount.unmount()
    first.beat(60.0)
    first.beat(60.0)
    assert list(mount.spool.iterdir()) == []
    assert caplog.text.count("no longer mounted") == 1
    mount.mount()
    aged(file_of(mount.spool), 100.0)
    beating(mount.spool, HERE)
    with pytest.raises(AnotherDaemonError, match="host here"):
        first.beat(60.0)


def test_a_daemon_that_begins_before_the_mount_comes_has_its_heartbeat_there(
    mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    """It wrote none for good, and looked for no other, once it had seen the directory below the mount."""
    first = beating(mount.spool, HERE)
    mount.mount()
    first.beat(60.0)
    with pytest.raises(AnotherDaemonError, match="host here"):
        beating(mount.spool, THERE)
    mount.unmount()
    first.beat(60.0)
    assert caplog.text.count("no longer mounted") == 1


def test_a_daemon_that_is_told_to_reload_while_the_mount_is_away_finds_it_again(mount: Mount) -> None:
    mount.mount()
    before = beating(mount.spool, HERE)
    mount.unmount()
    before.stop()
    after = beating(mount.spool, HERE)
    mount.mount()
    aged(file_of(mount.spool), 100.0)
    after.beat(60.0)
    with pytest.raises(AnotherDaemonError, match="host here"):
        beating(mount.spool, THERE)


@pytest.mark.parametrize("is_mounted", [False, True], ids=["local", "in-a-mount"])
def test_a_spool_that_the_admin_has_made_anew_is_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mounted: bool
) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda at: is_mounted and at == tmp_path)
    spool = tmp_path / "progress"
    spool.mkdir()
    first = beating(spool, HERE)
    spool.rename(tmp_path / "old")
    spool.mkdir()
    first.beat(60.0)
    with pytest.raises(AnotherDaemonError, match="host here"):
        beating(spool, THERE)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    beating(tmp_path, THERE)
    path, elsewhere = tmp_path / HEARTBEATS, tmp_path.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    Heartbeat(tmp_path, CLUSTER, HERE).beat(60.0)
    assert [json.loads(file.read_bytes())["holder"]["host"] for file in elsewhere.iterdir()] == ["there"]


def test_a_file_system_that_hangs_holds_up_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    monkeypatch.setattr("slurm_plugin.instance.heartbeat.PATIENCE_S", 0.05)

    @contextmanager
    def hanging(_path: Path, **_mode: int) -> Iterator[io.BytesIO]:
        answers.wait()
        raise OSError(errno.ESTALE, "it has come back")
        yield

    with monkeypatch.context() as hung:
        hung.setattr("slurm_plugin.instance.heartbeat.replacing", hanging)
        heart = Heartbeat(tmp_path, CLUSTER, HERE)
        for _ in range(3):
            heart.beat(60.0)
        heart.stop()
    assert caplog.text.count("no answer for") == 1
    answers.set()
    while not list((tmp_path / HEARTBEATS).iterdir()):
        heart.beat(60.0)  # as soon as that call has come back


def test_on_a_full_disk_a_living_daemon_is_seen_and_stays_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_full_disk(_path: Path, **_mode: int) -> NoReturn:  # also of inodes
        raise OSError(errno.ENOSPC, "No space left on device")

    first = beating(tmp_path, THERE)
    monkeypatch.setattr("slurm_plugin.instance.heartbeat.replacing", on_full_disk)
    aged(file_of(tmp_path), 50.0)
    first.beat(60.0)
    aged(file_of(tmp_path), 50.0)
    with pytest.raises(AnotherDaemonError, match="host there"):
        beating(tmp_path, HERE)
    aged(file_of(tmp_path), 50.0)
    beating(tmp_path, HERE)  # it has been dead for long, and its file does not become younger by ours
    beating(tmp_path, HERE)
