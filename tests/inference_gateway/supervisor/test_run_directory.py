"""The directory on the node's own disk: nobody else's, and gone afterwards without its log being lost."""

import fcntl
import os
import resource
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from inference_gateway import gateway_paths
from inference_gateway.gateway_paths import GatewayPaths


@pytest.fixture(autouse=True)
def _node_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_directory_is_private_and_the_same_after_a_restart(tmp_path: Path) -> None:
    made = gateway_paths.private("t", 7)
    assert (made.parent, made.stat().st_mode & 0o7777) == (tmp_path, 0o700)
    (made / "stats.sock").touch()
    assert gateway_paths.private("t", 7) == made
    assert (made / "stats.sock").exists()
    assert (
        len({made, gateway_paths.private("t", 8), gateway_paths.private("t", None), gateway_paths.private("u", 7)}) == 4
    )


def test_that_of_a_second_gateway_is_no_other_gateways(tmp_path: Path) -> None:
    """Which would remove what its killed jobs have left, and keep their logs."""
    made = gateway_paths.private(GatewayPaths(tmp_path, slot=2).private_name("t"), 7)
    others = (GatewayPaths(tmp_path).private_name(name) for name in ("t", "t-second"))
    assert [gateway_paths.left(other, ()) for other in others] == [[], []]
    assert gateway_paths.left(GatewayPaths(tmp_path, slot=2).private_name("t"), ()) == [made]


def _one_that_others_may_enter(taken: Path) -> None:
    taken.mkdir(mode=0o700)
    taken.chmod(0o711)


def _a_link(taken: Path) -> None:
    (taken.parent / "elsewhere").mkdir(mode=0o700)
    taken.symlink_to(taken.parent / "elsewhere")


@pytest.mark.parametrize("take", [_one_that_others_may_enter, _a_link, Path.touch])
def test_one_that_somebody_has_made_first_is_not_used(take: Callable[[Path], object]) -> None:
    """Its name can be guessed, and in /tmp only who has made it can remove it."""
    usual = gateway_paths.private("t", 7)
    usual.rmdir()
    take(usual)
    made = gateway_paths.private("t", 7)
    assert made != usual
    assert made.lstat().st_mode == stat.S_IFDIR | 0o700
    assert gateway_paths.private("t", 7) == made, "also after a restart"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_one_of_another_user_is_not_used() -> None:
    usual = gateway_paths.private("t", 7)
    os.chown(usual, 4711, 4711)
    made = gateway_paths.private("t", 7)
    assert made != usual
    os.chown(made, 4711, 4711)
    assert gateway_paths.private("t", 7) not in (usual, made)


def test_its_log_is_appended_to_the_kept_one(tmp_path: Path) -> None:
    made, kept = gateway_paths.private("t", 7), tmp_path / "access.jsonl"
    (made / "access.log").write_text("new\n")
    kept.write_text("old\n")
    gateway_paths.clean_up(made, made / "access.log", kept)
    assert kept.read_text() == "old\nnew\n"
    assert not made.exists()


def test_without_requests_there_is_no_log_and_the_directory_is_removed(tmp_path: Path) -> None:
    made = gateway_paths.private("t", 7)
    gateway_paths.clean_up(made, made / "access.log", tmp_path / "access.jsonl")
    assert not made.exists()


def test_a_log_that_has_no_room_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, kept = gateway_paths.private("t", 7), tmp_path / "access.jsonl"
    (made / "access.log").write_text("new\n" * 1000)
    (made / "keys.map").touch()
    kept.write_text("old\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        gateway_paths.clean_up(made, made / "access.log", kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.read_text() == "old\n"
    assert not made.exists()
    assert str(kept) in caplog.text


def test_of_the_kept_log_there_are_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_paths, "LARGEST_BYTES", 7)
    kept = tmp_path / "access.jsonl"
    for line in ("one\n", "two\n", "three\n", "four\n", "five\n"):
        made = gateway_paths.private("t", 7)
        (made / "access.log").write_text(line)
        gateway_paths.clean_up(made, made / "access.log", kept)
    assert (kept.exists(), (tmp_path / "access.jsonl.1").read_text()) == (True, "three\nfour\n")
    assert kept.read_text() == "five\n"


def test_a_kept_log_that_another_gateway_renames_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_paths, "LARGEST_BYTES", 7)
    made, kept = gateway_paths.private("t", 7), tmp_path / "access.jsonl"
    (made / "access.log").write_text("new\n")
    kept.write_text("old\n" * 3)
    monkeypatch.setattr(fcntl, "flock", lambda *_: kept.rename(f"{kept}.1"))  # the other one had the lock
    gateway_paths.clean_up(made, made / "access.log", kept)
    assert (tmp_path / "access.jsonl.1").read_text() == "old\n" * 3 + "new\n"
    assert caplog.text == ""
