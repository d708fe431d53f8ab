"""A private directory which the `sxrun`s of one job on one node share for the daemons they need.

Jobs that hold shards of the same GPU have a second one together, per user: one kernel manager has to serve them all.

The first that comes starts them, the last that leaves stops them. Who is there is told by shared locks, which the
kernel takes back from whoever dies.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 80  # sockets lie in it, and the name of a Unix socket has at most 107 bytes
_OF_NODE = ("SLURM_CLUSTER_NAME", "SLURMD_NODENAME")


def place(environment: Mapping[str, str]) -> Path:
    """Where the room of this job is: one per user, job, node and set of visible GPUs. Outside of jobs, one per user.

    Per set of GPUs, since an MPS daemon numbers the GPUs it was started with anew.
    """
    job = environment.get("SLURM_JOB_ID", "")
    visible = environment.get("CUDA_VISIBLE_DEVICES", "all")
    rest = hashlib.sha256(f"{socket.gethostname()} {visible}".encode()).hexdigest()[:12]
    name = f"explsched-{os.geteuid()}-{job if job.isdecimal() else 'nojob'}-{rest}"
    own = environment.get("SLURM_TMPDIR", "")
    path = Path(own) / name
    if own.startswith("/") and Path(own).is_dir() and len(os.fsencode(path)) <= _LONGEST:
        return path
    return Path("/tmp") / name  # noqa: S108  the name is claimed with mkdir, mode 0700, and its owner is checked


def shared_place(environment: Mapping[str, str]) -> Path | None:
    """Where the room of all jobs is that this user has on the same GPUs; None for a job that holds no shards.

    Not in SLURM_TMPDIR, which is one job's alone.
    """
    gpus = environment.get("SLURM_JOB_GPUS", "")  # as the node numbers them, unlike CUDA_VISIBLE_DEVICES in a cgroup
    if not environment.get("SLURM_SHARDS_ON_NODE") or not gpus:
        return None
    where = " ".join((socket.gethostname(), *(environment.get(name, "") for name in _OF_NODE), gpus))
    name = f"explsched-{os.geteuid()}-gpu-{hashlib.sha256(where.encode()).hexdigest()[:12]}"
    return Path("/tmp") / name  # noqa: S108  claimed as above


class JobRoom:
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
                    self._present = os.open(path / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    fcntl.flock(self._present, fcntl.LOCK_SH)
                    return
            except FileNotFoundError:
                continue

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Nobody else comes, leaves, starts or stops meanwhile. Yields whether the room is still there."""
        descriptor = os.open(self.path / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                shutil.rmtree(self.path)


def _claim(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise OSError(errno.EPERM, "is not a directory of this user alone", str(path)) from None


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
