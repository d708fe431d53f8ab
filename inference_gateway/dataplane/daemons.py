"""Processes that outlive whoever started them, known by a pid file and their command line."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

# glibc gives large blocks back to the system at once and asks for them again: two system calls and the page faults for
# every buffer of HAProxy.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
# Buffers of many requests lie far apart: in huge pages their addresses are looked up less often. A site's own word on
# it comes first, and a glibc that does not know it (before 2.35) ignores it.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

# Children are kept so that they can be collected when they end.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def start(argv: Sequence[str], output: int | None, errors: Path, directory: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own. Raises `FileNotFoundError`, `OSError`.

    Its errors are appended to a file; its output goes to an open file, or there, too.
    """
    environment = {**_HUGE_PAGES, **os.environ, **_KEEP_MEMORY}
    with errors.open("ab") as err:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=err if output is None else output,
            stderr=err,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    _CHILDREN[child.pid] = child
    return child


def running(pid_file: Path, mark: str) -> int | None:
    """The process id in the file, if that process has the argument `mark`: a recycled id has not."""
    _reap()
    try:
        pid = int(pid_file.read_text(encoding="ascii").split()[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return None
    return pid if mark.encode() in command else None


def stop(pid_file: Path, mark: str, steps: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send each signal in turn and give it its seconds, until the process is gone."""
    for number, patience_s in steps:
        pid = running(pid_file, mark)
        if pid is None:
            return
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)
        deadline_s = time.monotonic() + patience_s
        while running(pid_file, mark) == pid and time.monotonic() < deadline_s:
            time.sleep(0.02)


def _reap() -> None:
    """Collect children that have ended: as zombies they would look alive."""
    for pid, child in tuple(_CHILDREN.items()):
        if child.poll() is not None:
            del _CHILDREN[pid]
