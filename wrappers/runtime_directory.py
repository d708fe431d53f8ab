"""A private directory which the `sxrun`s of one job on one node share for the daemons they need.

Jobs that hold shards of the same GPU have a second one together, per user: one kernel manager has to serve them all.
What one `sxrun` alone needs is in a room of its own.

The first that comes starts them, the last that leaves stops them. Who is there is told by shared locks, which the
kernel takes back from whoever dies. If all die, their room stays, until another `sxrun` of the user comes to the node.

The locks are on the directory itself: of a long job, cleaners of /tmp remove files that are in use, and who came after
that would lock another file. systemd-tmpfiles leaves a directory alone, and all in it, while somebody has a lock on it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from wrappers import allocated_gpus

_LONGEST = 80  # sockets lie in it, and the name of a Unix socket has at most 107 bytes
_OF_NODE = ("SLURM_CLUSTER_NAME", "SLURMD_NODENAME")
_REMOVED = "-removed-"  # in no room's name
_NAME = re.compile(rf"explsched-\d+-(?P<whose>\d+|nojob|gpu)-[0-9a-f]{{12}}({_REMOVED}[0-9a-f]{{8}})?")


def place(environment: Mapping[str, str]) -> Path:
    """Where the room of this job is: one per user, job, node and set of visible GPUs. Outside of jobs, one per user.

    Per set of GPUs, since an MPS daemon numbers the GPUs it was started with anew.
    """
    job = environment.get("SLURM_JOB_ID", "")
    where = f"{socket.gethostname()} {allocated_gpus.visible(environment)}"
    rest = hashlib.sha256(where.encode()).hexdigest()[:12]
    name = f"explsched-{os.geteuid()}-{job if job.isdecimal() else 'nojob'}-{rest}"
    own = environment.get("SLURM_TMPDIR", "")
    path = Path(own) / name
    if own.startswith("/") and os.path.isdir(own) and len(os.fsencode(path)) <= _LONGEST:  # noqa: PTH112  Path.is_dir raises
        return path
    return Path("/tmp") / name  # noqa: S108  the name is claimed with mkdir, mode 0700, and its owner is checked


def own_place(environment: Mapping[str, str]) -> Path:
    """Where a room is that no other `sxrun` has a part in. It goes as all rooms do if its `sxrun` is killed."""
    shared = place(environment)
    return shared.with_name(f"{shared.name.rpartition('-')[0]}-{os.urandom(6).hex()}")


def shared_place(environment: Mapping[str, str]) -> Path | None:
    """Where the room of all jobs is that this user has on the same GPUs; None for a job that holds no shards.

    Not in SLURM_TMPDIR, which is one job's alone.
    """
    gpus = allocated_gpus.of_job(environment)
    if not environment.get("SLURM_SHARDS_ON_NODE") or not gpus:
        return None
    where = " ".join((socket.gethostname(), *(environment.get(name, "") for name in _OF_NODE), gpus))
    name = f"explsched-{os.geteuid()}-gpu-{hashlib.sha256(where.encode()).hexdigest()[:12]}"
    return Path("/tmp") / name  # noqa: S108  claimed as above


def is_of_another_job(path: Path, environment: Mapping[str, str]) -> bool:
    """Whether a path lies in a room that is neither this job's nor that of the GPUs on which it holds shards."""
    for room in (path, *path.parents):
        if named := _NAME.fullmatch(room.name):
            if named["whose"] == "gpu":
                return room != shared_place(environment)
            job = environment.get("SLURM_JOB_ID", "")
            return named["whose"] != (job if job.isdecimal() else "nojob")
    return False


class RuntimeDirectory:
    """The presence of one `sxrun` in a room. `close` must be called."""

    def __init__(self, path: Path) -> None:
        """Make the room or join it. Raises OSError, also if the directory is not ours alone."""
        self.path = path
        while True:
            _claim(path)
            try:
                with self.locked() as lasting:
                    if not lasting:
                        continue  # its last user has just removed it
                    self._present = _entered(path)
                    fcntl.flock(self._present, fcntl.LOCK_SH)
                    return
            except FileNotFoundError:
                continue

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Nobody else comes, leaves, starts or stops meanwhile. Yields whether the room is still there."""
        descriptor = _opened(self.path / "start.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield _is_same(descriptor, self.path / "start.lock")
        finally:
            os.close(descriptor)

    def close(self, last: Callable[[], None]) -> None:
        """Leave. The last one calls `last` and removes the room."""
        with self.locked():
            try:
                fcntl.flock(self._present, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            finally:
                os.close(self._present)
            # Whoever comes now waits for the other lock, and then finds that the room is gone.
            try:
                last()
            finally:
                _remove(self.path)


def rooms(directory: Path) -> list[Path]:
    """The rooms of this user in a directory, and what is left of rooms whose remover was killed."""
    own = f"explsched-{os.geteuid()}-"
    found = (path for path in directory.iterdir() if path.name.startswith(own))
    return sorted(path for path in found if _NAME.fullmatch(path.name) and _is_private(path))


def remove_if_stale(path: Path, is_served: Callable[[Path], bool]) -> None:
    """Remove a room that nobody is in: all its `sxrun`s were killed. Does not wait. Raises OSError.

    One in which a daemon still answers (`is_served`) stays, since a command can outlive its `sxrun`.
    """
    with suppress(FileNotFoundError, BlockingIOError):  # it goes by itself, or somebody comes
        if _REMOVED in path.name:
            shutil.rmtree(path)
            return
        start = path / "start.lock"
        with _taken(start, _opened(start)), _taken(path, _entered(path)):
            if not is_served(path):
                _remove(path)


@contextmanager
def _taken(path: Path, descriptor: int) -> Iterator[None]:
    """Raises BlockingIOError if somebody has the lock, FileNotFoundError if `path` has been removed meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_same(descriptor, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """All at once, by a new name: who came while files went would hold a lock that the next one does not see."""
    removed = path.with_name(f"{path.name}{_REMOVED}{os.urandom(4).hex()}")
    path.rename(removed)
    with suppress(FileNotFoundError):  # another `sxrun` helps
        shutil.rmtree(removed)


def _opened(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _entered(room: Path) -> int:
    return os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _claim(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not _is_private(path):
            raise OSError(errno.EPERM, "is not a directory of this user alone", str(path)) from None


def _is_private(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True  # removed meanwhile: whoever goes on with it will see
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
