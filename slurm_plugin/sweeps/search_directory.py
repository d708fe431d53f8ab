"""The directory of a search: which search it is, and that one pass at a time works in it."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from explsched.atomic_file import create_file_durably
from explsched.errors import warn
from slurm_plugin.sweeps.search_file import SearchError, SearchFile

RESTORE = "restore its latest state from a backup, or choose another name"


class Identity(NamedTuple):
    """What tells a search from others of the same name, and the directory in which its trials run."""

    id: str
    working_directory: Path


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """The lock, which sbatch inherits: if we are killed while it runs, the next pass waits for its end.

    For its owner alone: whoever may read a file can hold its lock. Root could open it, and is refused: trials would
    be submitted again as root's, and jobs and reports of the owner's not be found.
    """
    path = directory / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0 != os.fstat(descriptor).st_uid:
            user = _owner(path)
            raise SearchError(f"{directory} is the search of user {user}: run it as {user}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            warn("sexplsched", f"{path}: another `sweep run` of this search is at work: waiting for its end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def is_begun(directory: Path) -> bool:
    """Whether the directory is a search's by now."""
    return _id(directory).exists()


def identify(path: Path, file: SearchFile) -> Identity:
    """Which search the file at `path` is; what must not change with it is compared with what it was begun with.

    Former releases did not note the directories; then they are those of this pass. A copy would take the jobs of
    the original for its own, and by another name its results, too. Raises `SearchError` where it differs or is a copy.
    """
    directory = file.directory(path)
    fixed = {"space": file.space, "metric": file.metric, "direction": file.direction}
    space, noted = msgspec.json.encode(list(fixed.values())).decode(), _id(directory)
    if not noted.exists():
        told = {"id": uuid.uuid4().hex[:16], "space": space, "working_directory": str(Path.cwd())}
        create_file_durably(noted, json.dumps({**told, "directory": str(directory)}))
    try:
        begun = json.loads(noted.read_text())
    except ValueError as error:
        raise SearchError(f"{noted}: is damaged ({error}): {RESTORE}") from error
    original = Path(begun.get("directory") or directory)
    if original.name != directory.name or _is_copy(noted, _id(original)):
        raise SearchError(f"{directory} is a copy of {original}, another search: begin one without a copy")
    pairs = zip(fixed, json.loads(begun["space"]), json.loads(space), strict=True)
    if differ := ", ".join(name for name, before, now in pairs if before != now):
        raise SearchError(f"{path}: differs from when {directory} was created: {differ}; choose another name")
    return Identity(str(begun["id"]), Path(begun.get("working_directory") or Path.cwd()))


def _id(directory: Path) -> Path:
    return directory / "id"


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # a user without a name on this host
        return str(path.stat().st_uid)


def _is_copy(own: Path, original: Path) -> bool:
    """Whether both files are there, and of the same search: one that was moved has left none behind.

    What is mounted twice has the same inode, but may be on another device.
    """
    try:
        return own.stat().st_ino != original.stat().st_ino and own.read_bytes() == original.read_bytes()
    except FileNotFoundError:
        return False
