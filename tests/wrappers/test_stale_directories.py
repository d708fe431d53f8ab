"""What is left of a job whose `sxrun`s were all killed goes when another one comes to the node."""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wrappers.gpu_node import GpuNode, gpu_node
from wrappers import runtime_directory, sharing
from wrappers.runtime_directory import RuntimeDirectory, place

SHARE = ("--share", "high", "--mps", "--")


@pytest.fixture
def node() -> Iterator[GpuNode]:
    with gpu_node() as made:
        yield made


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """A room whose only user was killed."""
    path = tmp_path / place({"SLURM_JOB_ID": "7"}).name
    user = os.fork()
    if user == 0:
        try:
            RuntimeDirectory(path)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(user, 0)
    return path


def sweep(directory: Path, is_served: Callable[[Path], bool] = lambda _: False) -> None:
    for path in runtime_directory.rooms(directory):
        runtime_directory.remove_if_stale(path, is_served)


def kill(pid_file: Path) -> None:
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)


def test_rooms_of_killed_jobs_go_with_the_next_sxrun(node: GpuNode) -> None:
    running = node.start(*SHARE, "sh", "-c", "echo ready; read -r line", SLURM_JOB_ID="41")
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.kill()
    running.communicate()
    [room] = node.rooms()
    node.sxrun(*SHARE, "true")
    assert node.rooms() == [room]  # its daemons answer
    kill(room / "sexplkmd.pid")
    node.sxrun(*SHARE, "true")
    assert node.rooms() == [room]  # one of them still does
    kill(room / "mps/nvidia-cuda-mps-control.pid")
    done = node.sxrun(*SHARE, "true")
    assert (done.err, node.rooms()) == ("", [])


def test_a_directory_that_cannot_be_read_keeps_no_command_from_running(
    tmp_path: Path, stale: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Slurm's own temporary directory of a job may go while its `sxrun` starts."""
    sharing.remove_stale({tmp_path / "gone", stale.parent})
    assert not stale.exists()
    assert capfd.readouterr().err == f"sxrun: {tmp_path / 'gone'}: No such file or directory\n"


def test_a_room_that_cannot_be_removed_is_told_and_the_others_go(
    node: GpuNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [place({"SLURM_JOB_ID": job}).name for job in ("1", "2", "3")]
    for name in names:
        (node.directory / "tmp" / name).mkdir(0o700)
    trap = node.directory / "tmp" / names[1] / "start.lock"
    trap.mkdir()
    done = node.sxrun(*SHARE, "true")
    assert done.status == 0
    assert done.err == f"sxrun: {trap}: Is a directory\n"
    assert [room.name for room in node.rooms()] == [names[1]]


def test_a_stale_room_goes(stale: Path) -> None:
    sweep(stale.parent)
    assert list(stale.parent.iterdir()) == []


def test_a_room_with_somebody_in_it_stays(stale: Path) -> None:
    somebody = RuntimeDirectory(stale)
    sweep(stale.parent)
    with somebody.locked() as lasting:
        assert lasting
    somebody.close(lambda: None)


def test_a_room_whose_daemon_answers_stays(stale: Path) -> None:
    asked: list[Path] = []

    def answers(path: Path) -> bool:
        asked.append(path)
        return True

    sweep(stale.parent, answers)
    assert (stale.exists(), asked) == (True, [stale])


def test_a_room_in_which_somebody_starts_or_stops_is_not_waited_for(stale: Path) -> None:
    with (stale / "start.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(stale.parent)
    assert stale.exists()


@pytest.mark.parametrize("name", ["explsched-{uid}-data", "explsched-{uid}-7-data", "explsched-{uid}-7-0123456789abc"])
def test_a_directory_that_is_no_room_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name.format(uid=os.geteuid())).mkdir(0o700)
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_room_of_another_user_stays(stale: Path) -> None:
    stale.rename(stale.with_name(stale.name.replace(f"-{os.geteuid()}-", f"-{os.geteuid() + 1}-")))
    sweep(stale.parent)
    assert len(list(stale.parent.iterdir())) == 1


@pytest.mark.parametrize("trap", ["open to others", "a link", "a file"])
def test_what_only_poses_as_a_room_stays(stale: Path, trap: str) -> None:
    if trap == "open to others":
        stale.chmod(0o777)
    else:
        elsewhere = stale.parent / "elsewhere"
        stale.rename(elsewhere)
        if trap == "a link":
            stale.symlink_to(elsewhere)
        else:
            stale.touch(0o600)
    before = sorted(stale.parent.rglob("*"))
    sweep(stale.parent)
    assert sorted(stale.parent.rglob("*")) == before


def test_a_removal_that_was_killed_is_finished(stale: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", killed)
        sweep(stale.parent)
    assert len(list(stale.parent.iterdir())) == 1
    assert not stale.exists()
    sweep(stale.parent)
    assert list(stale.parent.iterdir()) == []


def test_a_room_that_is_made_anew_during_the_removal_of_the_old_one_stays(
    stale: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the files of the old one go, somebody who comes must not open them."""
    came: list[RuntimeDirectory] = []
    really = shutil.rmtree

    def remove(path: Path) -> None:
        came.append(RuntimeDirectory(stale))
        really(path)

    monkeypatch.setattr(shutil, "rmtree", remove)
    sweep(stale.parent)
    [somebody] = came
    with somebody.locked() as lasting:
        assert lasting
    sweep(stale.parent)
    assert stale.exists()
    somebody.close(lambda: None)


@pytest.mark.parametrize("opener", ["_opened", "_entered"])
def test_a_room_that_is_replaced_before_its_lock_is_had_stays(
    stale: Path, monkeypatch: pytest.MonkeyPatch, opener: str
) -> None:
    really: Callable[[Path], int] = getattr(runtime_directory, opener)
    replaced: list[Path] = []

    def opened(path: Path) -> int:
        descriptor = really(path)
        if not replaced:
            replaced.append(stale)
            shutil.rmtree(stale)
            stale.mkdir(0o700)
        return descriptor

    monkeypatch.setattr(runtime_directory, opener, opened)
    sweep(stale.parent)
    assert replaced == [stale]
    assert stale.exists()


def remove_files(room: Path) -> None:
    for file in room.iterdir():
        file.unlink()


def test_files_that_a_cleaner_removes_make_nobody_the_last(tmp_path: Path) -> None:
    """A job may last longer than files do in /tmp."""
    ended: list[str] = []
    path = tmp_path / place({"SLURM_JOB_ID": "7"}).name
    first = RuntimeDirectory(path)
    remove_files(path)
    second = RuntimeDirectory(path)
    remove_files(path)
    sweep(tmp_path)
    second.close(lambda: ended.append("by the second"))
    assert ended == []
    third = RuntimeDirectory(path)
    first.close(lambda: ended.append("by the first"))
    assert ended == []
    third.close(lambda: ended.append("by the last"))
    assert ended == ["by the last"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="needs systemd-tmpfiles")
def test_systemd_leaves_a_room_alone_while_somebody_is_in_it(tmp_path: Path) -> None:
    rules = tmp_path / "rules.conf"
    rules.write_text(f"d {tmp_path}/node - - - 0\n")
    (tmp_path / "node").mkdir()
    room = RuntimeDirectory(tmp_path / "node" / place({"SLURM_JOB_ID": "7"}).name)
    aged = tmp_path / "node" / "aged"
    aged.touch()
    subprocess.run(["systemd-tmpfiles", "--clean", str(rules)], check=True, capture_output=True)
    assert (aged.exists(), (room.path / "start.lock").exists()) == (False, True)
    room.close(lambda: None)
