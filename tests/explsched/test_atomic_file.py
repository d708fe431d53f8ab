"""Files that appear whole or not at all."""

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from explsched.atomic_file import (
    atomic_write,
    create_file_durably,
    drafts,
    output,
    replace_file,
    replace_file_durably,
    replacing,
)

WRITERS = [replace_file, replace_file_durably, create_file_durably]


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.usefixtures("umask")
def test_a_new_file_has_the_mode_asked_for_or_that_of_any_new_file(tmp_path: Path, write: Callable[..., None]) -> None:
    write(tmp_path / "plain", "Zürich")
    write(tmp_path / "open", b"\xff", mode=0o644)
    write(tmp_path / "private", "", mode=0o600)
    assert (tmp_path / "plain").read_text(encoding="utf-8") == "Zürich"
    assert (tmp_path / "open").read_bytes() == b"\xff"
    assert [mode(tmp_path / name) for name in ("plain", "open", "private")] == [0o640, 0o644, 0o600]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("write", [replace_file, replace_file_durably])
@pytest.mark.usefixtures("umask")
def test_a_replaced_file_is_another_file_with_the_same_mode(tmp_path: Path, write: Callable[..., None]) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o604)
    with path.open() as reader:
        write(path, "new")
        assert reader.read() == "old"
    assert (path.read_text(), mode(path)) == ("new", 0o604)
    write(path, "closed", mode=0o600)
    assert (path.read_text(), mode(path)) == ("closed", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_content_of_a_created_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "key"
    create_file_durably(path, "first")
    with pytest.raises(FileExistsError):
        create_file_durably(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_raises_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", WRITERS)
def test_an_error_names_the_wanted_file(tmp_path: Path, write: Callable[..., None]) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError, match=re.escape(repr(str(path)))):
        write(path, "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=re.escape(repr(str(tmp_path / "folder")))):
        write(tmp_path / "folder", "")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_what_a_killed_writer_left_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for name in ("other", ".state.json.swp", ".other.json.0123456789abcdef.tmp"):
        (tmp_path / name).touch()
    pid = os.fork()
    if pid == 0:
        with replacing(path):
            os._exit(0)
    os.waitpid(pid, 0)
    (left,) = drafts(path)
    assert left.name.startswith(".state.json.")


def test_what_killed_jobs_left_of_a_checkpoint_is_removed_after_a_day(tmp_path: Path) -> None:
    path = tmp_path / "last[1].pt"
    long_ago, now, other = (
        tmp_path / f".{name}.tmp"
        for name in ("last[1].pt.0123456789abcdef", "last[1].pt.fedcba9876543210", "last1.pt.0123456789abcdef")
    )
    for left in (long_ago, now, other):
        left.touch()
    for left in (long_ago, other):
        os.utime(left, (0, time.time() - 90_000))
    atomic_write(path, lambda file: file.write(b"x"))
    assert sorted(tmp_path.iterdir()) == sorted([path, now, other])


def test_a_result_is_written_in_place_where_a_rename_would_do_harm(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "stdout", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    with output(link) as file:
        file.write(b"new")
    assert (link.is_symlink(), real.read_text()) == (True, "new")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with output(pipe) as file:
        file.write(b"told")
    assert os.read(reader, 9) == b"told"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_result_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match=re.escape(repr(str(path)))), output(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"
