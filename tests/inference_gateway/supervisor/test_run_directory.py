"""The directory on the node's own disk: nobody else's, and gone afterwards without its log being lost."""

import os
import tempfile
from pathlib import Path

import pytest

from inference_gateway import gateway_paths
from inference_gateway.errors import GatewayError


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


@pytest.mark.parametrize("mode", [0o770, 0o701, 0o720])
def test_a_directory_that_others_may_enter_is_refused(mode: int) -> None:
    gateway_paths.private("t", 7).chmod(mode)
    with pytest.raises(GatewayError, match="with mode 700"):
        gateway_paths.private("t", 7)


def test_a_directory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has made it first: its name can be guessed."""
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    with pytest.raises(GatewayError, match=f"must be a directory of uid {stranger}"):
        gateway_paths.private("t", 7)


def test_a_link_is_refused(tmp_path: Path) -> None:
    made = gateway_paths.private("t", 7)
    made.rename(tmp_path / "elsewhere")
    made.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GatewayError, match="must be a directory of uid"):
        gateway_paths.private("t", 7)


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


def test_a_log_that_cannot_be_appended_stays_in_the_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = gateway_paths.private("t", 7)
    (made / "access.log").write_text("new\n")
    gateway_paths.clean_up(made, made / "access.log", tmp_path / "nowhere" / "access.jsonl")
    assert (made / "access.log").read_text() == "new\n"
    assert "not cleaned up" in caplog.text
