"""CUDA MPS on GPUs that several jobs share, of a user or of all, for slurmd's prolog and epilog.

A daemon that a job starts ends with it, and the CUDA programs of the other jobs with the daemon. So slurmd starts one
for each user and set of GPUs, with the first job that comes, and ends it with the last that leaves. `sxrun` finds it by
the job's id.

    Prolog=.../python -I -m wrappers.node_mps prolog      Epilog=.../python -I -m wrappers.node_mps epilog

With `--all-users` behind both, one daemon of root's serves the jobs of all users on the GPUs.

Both always end with status 0, since slurmd takes a node out of service whose prolog fails: what went wrong is said on
standard error, and the jobs run without.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wrappers import allocated_gpus, mps
from wrappers.spanning import SPANNING, locks

DIRECTORY_VARIABLE = "EXPLSCHED_NODE_MPS"
_DIRECTORY = "/run/explsched-mps"
"""Not below /run/explsched, which is the daemon's user's, and which systemd removes when sexplschedd stops."""

_ALL_USERS = "--all-users"
_COMPONENTS = "SLURM_JOB_ID_HET_GROUP_"
LIMIT_S = 60.0  # of a prolog or epilog, which slurmd waits for
TURN_S = 30.0  # longer than one that has the lock takes
_LOCK = "root.lock"  # not "lock", which everybody could open, and hold, in former releases
_POLL_S = 0.05
_MOST_SAID = 65_536  # bytes that a pipe holds


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where the daemon of a user, or of all, on some GPUs keeps its files, and which jobs use it."""

    directory: Path
    uid: int | None  # None: root's, for all users
    gpus: str  # as the node numbers them, comma-separated

    @property
    def pipes(self) -> Path:
        """Its pipe directory, which is the user's alone, or open to all."""
        return self.directory / "mps"

    @property
    def jobs(self) -> Path:
        """A file for each job that is there; root's."""
        return self.directory / "jobs"

    def variables(self) -> dict[str, str]:
        """What the daemon and its clients need to find each other."""
        return {mps.PIPE_VARIABLE: str(self.pipes), mps.LOG_VARIABLE: str(self.directory / "log")}


def place(environment: Mapping[str, str], uid: int | None) -> ServerPlace | None:
    """Of a job of that user, or of any, as prolog and epilog know it; None if it has no GPUs."""
    gpus = environment.get("SLURM_JOB_GPUS", "")
    if not gpus or not all(part.isdecimal() for part in gpus.split(",")):
        return None
    return ServerPlace(_base(environment) / f"{_whose(uid)}-{gpus.replace(',', '-')}", uid, gpus)


def of_job(environment: Mapping[str, str]) -> dict[str, str]:
    """What a command of the job needs to use the node's daemon; nothing where none answers.

    Nothing either for a command that sees a part of the job's GPUs: by which numbers the daemon has these cannot be
    told, since CUDA_VISIBLE_DEVICES counts from 0 where a cgroup constrains devices.
    """
    numbers = mps.visible_numbers(environment)
    for found in filter(None, (_joined(environment, os.geteuid()), _joined(environment, None))):
        if mps.answering(found.variables()):
            if numbers is None:
                return found.variables()
            if len(numbers) == len(found.gpus.split(",")):
                return found.variables() | mps.visible(map(sorted(numbers).index, numbers))
    return {}


def _joined(environment: Mapping[str, str], uid: int | None) -> ServerPlace | None:
    """Where the prolog has put the job on this node, which no variable tells in all steps.

    All steps of a heterogeneous job have the id of its first component; which component's they are their GPUs tell.
    """
    names = ("SLURM_JOB_ID", *(name for name in environment if name.startswith(_COMPONENTS)))
    jobs = {environment.get(name, "") for name in names}
    gpus = allocated_gpus.of_command(environment).replace(",", "-") if len(jobs) > 1 else "*"
    places = _base(environment).glob(f"{_whose(uid)}-{gpus}/jobs")
    marks = [place / job for place in places for job in jobs if job.isdecimal() and (place / job).exists()]
    # An epilog that slurmd ended early has left the mark of a job that then came again.
    newest = max(marks, key=lambda mark: mark.stat().st_mtime, default=None)
    if newest is None:
        return None
    directory = newest.parent.parent
    return ServerPlace(directory, uid, ",".join(directory.name.split("-")[1:]))


def _base(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(DIRECTORY_VARIABLE) or _DIRECTORY)


def _whose(uid: int | None) -> str:
    return "all" if uid is None else str(uid)


def user_of(environment: Mapping[str, str]) -> int:
    """Whose job it is. Raises KeyError or ValueError."""
    return int(environment["SLURM_JOB_UID"])


def begin(environment: Mapping[str, str], uid: int | None) -> None:
    """The prolog: a job comes, to the daemon of `uid`, None for that of all users.

    Raises `MpsError`, OSError, or KeyError for an unknown user or a missing variable.
    """
    user = pwd.getpwuid(os.geteuid() if uid is None else uid)
    where = place(environment, uid)
    if where is None:
        return
    program = mps.control(environment)
    where.jobs.mkdir(mode=0o755, parents=True, exist_ok=True)
    (where.jobs / environment["SLURM_JOB_ID"]).touch()
    with _locked(where):
        if mps.answering(where.variables()):
            return
        for directory in (where.pipes, where.directory / "log"):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755 if uid is None else 0o700)
            os.chown(directory, user.pw_uid, user.pw_gid)
        if uid is None:
            (where.pipes / SPANNING).touch()
            (where.pipes / SPANNING).chmod(0o666)  # a lock of all users' commands
        argv = [str(program), "-d", *(["-multiuser-server"] if uid is None else [])]
        mps.launch(argv, _variables(where), where.directory / "start.log", user=user)


def end(environment: Mapping[str, str], uid: int | None) -> None:
    """The epilog: a job has gone. The last one ends the daemon. Raises as `begin`."""
    user = pwd.getpwuid(os.geteuid() if uid is None else uid)
    where = place(environment, uid)
    if where is None or not where.jobs.is_dir():
        return
    (where.jobs / environment["SLURM_JOB_ID"]).unlink(missing_ok=True)
    with _locked(where):
        if not any(where.jobs.iterdir()) and mps.answering(where.variables()):
            mps.end(mps.control(environment), _variables(where), user)


@contextmanager
def _locked(where: ServerPlace) -> Iterator[None]:
    """One prolog or epilog at a time. For root alone: whoever may read a file can hold its lock. Raises `MpsError`."""
    path = where.directory / _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not locks(descriptor, fcntl.LOCK_EX, TURN_S):
            raise mps.MpsError(f"{path} is still locked after {TURN_S:.0f} s")
        yield
    finally:
        os.close(descriptor)


def _variables(where: ServerPlace) -> dict[str, str]:
    """Of the daemon: nothing of slurmd's environment but PATH."""
    return {"PATH": os.environ.get("PATH", ""), "CUDA_VISIBLE_DEVICES": where.gpus, **where.variables()}


def _in_time(action: Callable[[], None]) -> None:
    """Do it in a process of its own, and leave that where it hangs, as at a driver or a file system of the user's.

    Both processes return: the new one when it is done, unless the action raises. It keeps nothing open of slurmd's,
    which waits until nobody has its pipe: what it says on standard error this one repeats. Raises `MpsError` for one
    that hangs.
    """
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for standard, own in enumerate((null, null, writing)):
            os.dup2(own, standard)
        os.closerange(3, 1 + max(int(path.name) for path in Path("/proc/self/fd").iterdir()))
        action()
        return
    os.close(writing)
    end_s = time.monotonic() + LIMIT_S
    while os.waitpid(worker, os.WNOHANG) == (0, 0):
        if time.monotonic() > end_s:
            os.kill(worker, signal.SIGKILL)
            raise mps.MpsError(f"not done after {LIMIT_S:.0f} s")
        time.sleep(_POLL_S)
    sys.stderr.write(os.read(reading, _MOST_SAID).decode(errors="replace"))


def main() -> int:
    """Run one of the two, as named by the first argument. Always 0, but for wrong arguments (2)."""
    actions = {"prolog": begin, "epilog": end}
    if len(sys.argv) < 2 or sys.argv[1] not in actions or sys.argv[2:] not in ([], [_ALL_USERS]):
        sys.stderr.write(f"usage: python -I -m wrappers.node_mps prolog | epilog [{_ALL_USERS}]\n")
        return 2
    os.umask(0o022)  # slurmd's may be another
    try:
        uid = None if sys.argv[2:] else user_of(os.environ)
        _in_time(partial(actions[sys.argv[1]], os.environ, uid))
    except (mps.MpsError, OSError, KeyError, ValueError) as error:
        sys.stderr.write(f"explsched: no MPS for job {os.environ.get('SLURM_JOB_ID', '?')}: {error!r}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
