"""CPU time of a process's threads, from /proc."""

from __future__ import annotations

from pathlib import Path


def cpu_ms(pid: int, name: str) -> float:
    """What the threads of this name have computed so far. Raises `LookupError` if there is none."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == name]
    if not tasks:
        raise LookupError(f"process {pid} has no thread {name!r}")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6
