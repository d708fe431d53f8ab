"""Of the commands that span GPUs one at a time is a client of an MPS daemon."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wrappers import allocated_gpus

SPANNING = "explsched-spanning"  # in a pipe directory: who of its clients spans GPUs
_TURN_S = 1.0  # longer than anybody but a hostile user keeps others from reading that
_POLL_S = 0.02
_VISIBLE = "CUDA_VISIBLE_DEVICES"


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
