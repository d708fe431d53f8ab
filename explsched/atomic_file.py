"""Files that are replaced in one step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def atomic_write(path: Path | str, writer: Callable[[BinaryIO], object]) -> None:
    """Let `writer` fill a file that replaces `path` in one step: a job killed meanwhile keeps its old checkpoint.

    The file has the permissions of the one it replaces, or those of a new file. What `writer` raises is raised.
    """
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, _mode(target))  # mkstemp's 0600 would hide the checkpoint from the user's group
            writer(file)
            file.flush()
            os.fsync(descriptor)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the new name, too, survives a crash of the node
    finally:
        os.close(folder)


def _mode(target: Path) -> int:
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0o077)
        os.umask(umask)
        return 0o666 & ~umask
