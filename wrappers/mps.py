"""A CUDA MPS daemon of one job, in private directories.

MPS (Multi-Process Service) is what lets kernels of several processes run at the same time; without it the GPU gives
each process its turn. Names and commands as in nvidia-cuda-mps-control(1).
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_PRIORITY_VARIABLE = "CUDA_MPS_CLIENT_PRIORITY"
_MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")  # noqa: S108  where CUDA looks when no directory is named
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_START_S, _STOP_S, _POLL_S = 10.0, 20.0, 0.02
_LONGEST_WORD = 64
_MOST_SAID = 4096  # characters of what a failed start says
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
        launch([str(control(environment)), "-d"], {**bare, **own}, room / "mps-start.log", in_child=as_daemon)
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
    end(control(environment), {**environment, **own})


def launch(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    user: pwd.struct_passwd | None = None,
    in_child: Callable[[], None] | None = None,
) -> None:
    """Start the daemon whose pipe directory the environment names, and wait until it serves that.

    What it prints goes to `log`, for it may keep a pipe open. `user` is whose process it becomes, by default ours;
    `in_child` is run in the child before the program. Raises `MpsError`, with what the program has said.
    """
    pipes = Path(environment[PIPE_VARIABLE])
    _run(argv, environment, b"", _START_S, log, user, in_child)
    end_s = time.monotonic() + _START_S
    while not _is_alive(pipes):
        if time.monotonic() > end_s:
            raise MpsError(f"{argv[0]} -d has made no {pipes}/control after {_START_S:.0f} s")
        time.sleep(_POLL_S)


def end(program: Path, environment: Mapping[str, str], user: pwd.struct_passwd | None = None) -> None:
    """End the daemon whose pipe directory the environment names, as this user. Raises `MpsError`."""
    _run([str(program)], environment, b"quit\n", _STOP_S, None, user, None)


def _run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    told: bytes,
    limit_s: float,
    log: Path | None,
    user: pwd.struct_passwd | None,
    in_child: Callable[[], None] | None,
) -> None:
    other = None if user is None or user.pw_uid == os.geteuid() else user
    line = " ".join(argv)
    try:
        with nullcontext(subprocess.DEVNULL) if log is None else log.open("wb") as output:
            done = subprocess.run(
                argv,
                env=environment,
                cwd=None if user is None else "/",  # slurmd's may be closed to the user
                input=told,
                stdout=output,
                stderr=output,
                timeout=limit_s,
                check=False,
                start_new_session=True,  # Ctrl-C is for the command
                user=None if other is None else other.pw_uid,
                group=None if other is None else other.pw_gid,
                extra_groups=None if other is None else os.getgrouplist(other.pw_name, other.pw_gid),
                preexec_fn=in_child,
            )
    except subprocess.TimeoutExpired:
        why = ": a process still uses the daemon" if told else ""
        raise MpsError(f"{line} has not ended after {limit_s:.0f} s{why}") from None
    except OSError as error:
        raise MpsError(f"{line}: {error}") from error
    if done.returncode:
        more = f"{_said(log) or 'no message'}; see {environment[LOG_VARIABLE]}"
        raise MpsError(f"{line} ends with status {done.returncode}: {more}")


def _said(log: Path | None) -> str:
    if log is None:
        return ""
    with log.open(errors="replace") as output:
        return output.read(_MOST_SAID).strip()


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
