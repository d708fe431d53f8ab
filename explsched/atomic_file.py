"""Files that are replaced atomically: a reader finds the old content or the new one, never a part.

Every function here writes a temporary file beside the target, removes it if anything fails, and gives the result the
permissions asked for; by default those of the file it replaces, or of a new file. An OSError about the temporary file
names the target. Standard library only, because trainings use it.

    replace_file           for short-lived content: does not wait for the disk
    replace_file_durably   for content that must survive a crash of the machine: waits for the disk
    create_file_durably    likewise, but never replaces a file: the first writer's content stays
    atomic_write           as `replace_file_durably`, filled by a function: checkpoints
    replacing              as `replace_file`, filled step by step
    output                 as `replacing`, for results of a command
"""

from __future__ import annotations

import errno
import glob
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_LEFT_S = 86_400.0
"""Nobody writes any more to a temporary file of a checkpoint that has not been written to for so long."""


def replace_file(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Replace a file's content atomically. Text is written as UTF-8. Raises OSError."""
    with replacing(path, mode=mode) as file:
        file.write(_bytes(content))


def replace_file_durably(
    path: Path, content: str | bytes, *, mode: int | None = None, prepare: Callable[[int], object] | None = None
) -> None:
    """As `replace_file`; content and name are on disk when this returns. Raises OSError.

    `prepare` is called with the descriptor of the new file, as to give that to another user.
    """
    with replacing(path, mode=mode) as file:
        if prepare is not None:
            prepare(file.fileno())
        file.write(_bytes(content))
        _sync(file)
    _sync_directory(path.parent)


def create_file_durably(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Create a file atomically. Raises FileExistsError, without changing the file, and other OSErrors."""
    draft = _draft(path)
    try:
        with _open(draft, path, mode) as file:
            file.write(_bytes(content))
            _sync(file)
        with _named(path):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _sync_directory(path.parent)


def atomic_write(path: Path | str, writer: Callable[[BinaryIO], object]) -> None:
    """Let `writer` fill a file that atomically replaces `path`: a job killed meanwhile keeps its old checkpoint.

    The file has the permissions of the one it replaces, or those of a new file. Exceptions of `writer` are passed on.
    What jobs that were killed meanwhile have left is removed after a day: checkpoints are large.
    """
    target = Path(path)
    for left in drafts(target):
        with suppress(OSError):  # its owner may be somebody else, or have come first
            if left.stat().st_mtime < time.time() - _LEFT_S:
                left.unlink()
    with replacing(target) as file:
        writer(file)
        _sync(file)
    _sync_directory(target.parent)


@contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file that replaces `path` at the end of the block, unless the block raises. Raises OSError."""
    draft = _draft(path)
    try:
        with _open(draft, path, mode) as file:
            yield file
        with _named(path):
            draft.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is reported, not the failed clean-up
            draft.unlink(missing_ok=True)
        raise


@contextmanager
def output(path: Path) -> Iterator[BinaryIO]:
    """As `replacing`, but what is no plain file is written in place: renaming would put a file where `/dev/stdout` was.

    Every OSError names `path`.
    """
    with _named(path):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            with path.open("wb") as file:
                yield file
        else:
            with replacing(path) as file:
                yield file


def drafts(path: Path) -> list[Path]:
    """Temporary files left beside `path` by processes that were killed while writing it."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.tmp"))


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def _open(draft: Path, path: Path, mode: int | None) -> BinaryIO:
    """A new file. The kernel applies the umask to the mode of one that replaces nothing."""
    wanted = _mode(path) if mode is None else mode
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _named(path):
        descriptor = os.open(draft, flags, 0o666 if wanted is None else wanted)
    file = os.fdopen(descriptor, "wb")
    if wanted is not None:
        os.fchmod(descriptor, wanted)  # the umask may have removed permissions
    return file


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make an OSError name `path`, which the caller knows, instead of the temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    """Make a new name in the directory survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not supported for directories by every file system
            raise
    finally:
        os.close(descriptor)
