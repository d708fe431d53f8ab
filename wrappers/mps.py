"""A CUDA MPS daemon of one job, in private directories.

MPS (Multi-Process Service) is what lets kernels of several processes run at the same time; without it the GPU gives
each process its turn. Names and commands as in nvidia-cuda-mps-control(1).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wrappers import allocated_gpus

_CONTROL = "nvidia-cuda-mps-control"
PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_PRIORITY_VARIABLE = "CUDA_MPS_CLIENT_PRIORITY"
_MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")  # noqa: S108  where CUDA looks when no directory is named
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_START_S, _STOP_S, _POLL_S = 10.0, 20.0, 0.02
_LONGEST_WORD = 64
SPANNING = "explsched-spanning"  # in a pipe directory: who of its clients spans GPUs
_TURN_S = 1.0  # longer than anybody but a hostile user keeps others from reading that
BELOW_NORMAL = {_PRIORITY_VARIABLE: "1"}


class MpsError(Exception):
    """MPS is missing, or does not start or end; the message says what was found."""


def answering(environment: Mapping[str, str]) -> Path | None:
    """The pipe directory of the daemon that serves a CUDA program of this environment, or None."""
    named = environment.get(PIPE_VARIABLE)
    pipes = Path(named) if named else DEFAULT_PIPES
    return pipes if (named or _is_for_us(pipes)) and _is_alive(pipes) else None


def _is_for_us(pipes: Path) -> bool:
    """Whether a directory that anybody could make has a daemon of this user or of root, which serves all."""
    try:
        return pipes.lstat().st_uid in (0, os.geteuid())
    except OSError:
        return False


def memory_limit(environment: Mapping[str, str], memory: str) -> dict[str, str]:
    """The variable by which MPS holds a client to this memory on each of its GPUs.

    Empty where they are not listed: one entry that names a GPU which the client does not see drops every limit.
    """
    gpus = [word for word in environment.get(_VISIBLE, "").split(",") if word.strip()]
    return {_MEMORY_VARIABLE: ",".join(f"{index}={memory}" for index in range(len(gpus)))} if gpus else {}


def spans_gpus(environment: Mapping[str, str]) -> bool:
    """Whether the command is likely to have collectives (NCCL): it sees several GPUs, or is one task of several."""
    visible = environment.get(_VISIBLE) or allocated_gpus.of_command(environment)
    return visible.count(",") > 0 or _is_one_of_several(environment)


def _is_one_of_several(environment: Mapping[str, str]) -> bool:
    """Whether the command is a task of a step that has others."""
    return environment.get("SLURM_STEP_NUM_TASKS") not in (None, "", "1")


@contextmanager
def sole_spanning_client(pipes: Path, environment: Mapping[str, str]) -> Iterator[bool]:
    """Whether no other command that spans GPUs is a client of the daemon meanwhile. Tasks of a step are one command.

    Kernels of collectives wait for their peers on other GPUs: those of two programs that run at the same time may each
    hold a GPU that the other one waits for, for ever (NVIDIA/nccl issues 231 and 574). True where it cannot be told.
    """
    step = environment.get("SLURM_STEP_ID", "")
    own = f"command {os.urandom(8).hex()}"  # not the pid: those of two containers may be equal
    if step and _is_one_of_several(environment):
        own = f"step {environment.get('SLURM_JOB_ID')}.{step}"
    try:
        descriptor = os.open(pipes / SPANNING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # a daemon of the site, whose directory is not this user's
        yield True
        return
    try:
        yield _joins(descriptor, own.encode())
    finally:
        os.close(descriptor)


def _joins(descriptor: int, own: bytes) -> bool:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, own, 0)
        except BlockingIOError:
            pass  # somebody is there, perhaps another task of the step
        return locks(descriptor, fcntl.LOCK_SH, _TURN_S) and os.pread(descriptor, 256, 0) == own
    except OSError:  # no plain file, a full disk, or a file system without locks
        return True


def locks(descriptor: int, kind: int, limit_s: float) -> bool:
    """Lock a file as flock(2) does, LOCK_SH or LOCK_EX; whether that has been possible in this time."""
    end_s = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)


def control(environment: Mapping[str, str]) -> Path:
    """The control program. Raises `MpsError` if it is not on PATH."""
    found = shutil.which(_CONTROL, path=environment.get("PATH"))
    if found is None:
        raise MpsError(
            f"{_CONTROL} is not on PATH (it comes with the NVIDIA driver): without CUDA MPS kernels of different "
            "processes do not run at the same time, they are time-sliced"
        )
    return Path(found)


def start(room: Path, environment: Mapping[str, str], as_daemon: Callable[[], None]) -> dict[str, str]:
    """Start a daemon in the room unless it is there; returns what its clients need in their environment.

    `as_daemon` is run in the child before the program (`SignalRelay.as_daemon`). Raises `MpsError`.
    """
    own = {PIPE_VARIABLE: str(room / "mps"), LOG_VARIABLE: str(room / "mps-log")}
    if not serves(room):
        for directory in own.values():
            Path(directory).mkdir(mode=0o700, exist_ok=True)
        # A step may have the interposer already (by SPANK or another `sxrun`), which is for clients, not the server.
        bare = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
        _tell_start([str(control(environment)), "-d"], {**bare, **own}, room / "mps-start.log", as_daemon)
        _wait_for(room / "mps")
    return {**own, **renumbered(environment)}


def none_in(room: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What keeps a command from any daemon: a pipe directory without one, and the GPUs by their own numbers."""
    (room / "no-mps").mkdir(mode=0o700, exist_ok=True)
    visible = {_VISIBLE: environment[_VISIBLE]} if _VISIBLE in environment else {}
    return {PIPE_VARIABLE: str(room / "no-mps"), **visible}


def serves(room: Path) -> bool:
    """Whether the room's daemon runs."""
    return _is_alive(room / "mps")


def stop(room: Path, environment: Mapping[str, str]) -> None:
    """End the room's daemon, if there is one. Raises `MpsError`."""
    if not serves(room):
        return
    own = {PIPE_VARIABLE: str(room / "mps"), LOG_VARIABLE: str(room / "mps-log")}
    try:
        subprocess.run(
            [str(control(environment))],
            env={**environment, **own},
            input=b"quit\n",
            capture_output=True,
            timeout=_STOP_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise MpsError(f"{_CONTROL} has not ended after {_STOP_S:.0f} s: a process of the job still uses it") from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise MpsError(f"{_CONTROL} cannot be ended: {error}") from error


def _tell_start(argv: list[str], environment: Mapping[str, str], log: Path, as_daemon: Callable[[], None]) -> None:
    try:
        with log.open("wb") as output:  # not a pipe: the daemon may keep it open
            done = subprocess.run(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_START_S,
                check=False,
                start_new_session=True,  # Ctrl-C is for the command
                preexec_fn=as_daemon,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsError(f"{argv[0]} -d: {error}") from error
    if done.returncode:
        words = log.read_text(errors="replace").strip() or "no message"
        raise MpsError(f"{argv[0]} -d ends with status {done.returncode}: {words}")


def _wait_for(pipes: Path) -> None:
    end_s = time.monotonic() + _START_S
    while not _is_alive(pipes):
        if time.monotonic() > end_s:
            raise MpsError(f"{_CONTROL} -d has made no {pipes}/control after {_START_S:.0f} s")
        time.sleep(_POLL_S)


def _is_alive(pipes: Path) -> bool:
    """Whether a daemon serves the directory: its control pipe is there, and its process, where it tells which."""
    if not os.path.exists(pipes / "control"):  # noqa: PTH110  Path.exists raises for closed directories
        return False
    try:
        pid = _word(pipes / f"{_CONTROL}.pid")
    except OSError:
        return True
    return not pid.isdecimal() or _runs(int(pid))


def _word(path: Path) -> str:
    """What a short file says. Raises OSError.

    The directory is a user's, and slurmd's prolog looks there as root: a fifo would hold it up for ever, and a link to
    a device fill its memory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LONGEST_WORD).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def _runs(pid: int) -> bool:
    """One that has ended stays as a zombie where nobody adopts it, as in many containers."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return _is_hidden(pid)
    return state not in ("Z", "X")


def _is_hidden(pid: int) -> bool:
    """Whether it is another user's, where /proc does not show these (hidepid), as a daemon of root's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        pass
    return False


def renumbered(environment: Mapping[str, str]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for clients: the daemon numbers the GPUs that it was started with from 0 on.

    With its own `1,3` a client would ask for a GPU that the daemon does not have. UUIDs stay valid.
    """
    numbers = visible_numbers(environment)
    return {} if numbers is None else visible(range(len(numbers)))


def visible(numbers: Iterable[int]) -> dict[str, str]:
    """The variable that names these GPUs."""
    return {_VISIBLE: ",".join(map(str, numbers))}


def visible_numbers(environment: Mapping[str, str]) -> list[int] | None:
    """The GPUs in CUDA_VISIBLE_DEVICES; None without numbers: not set, no GPU, or UUIDs."""
    words = environment.get(_VISIBLE, "").split(",")
    return [int(word) for word in words] if all(word.strip().isdecimal() for word in words) else None
