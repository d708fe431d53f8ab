"""Reports a job's progress to the scheduler.

    from wrappers.progress import report
    report(step=100, loss=0.25, total_steps=1000)

Each call appends lines to `<spool>/<job id>.jsonl`; the spool is `EXPLSCHED_SPOOL` or /var/spool/explsched/progress.
Outside a Slurm job nothing is written, unless `EXPLSCHED_PROGRESS_FILE` names a file. Reporting never raises into a
training for what is not the training's fault: if the file cannot be written, one warning goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

DEFAULT_SPOOL = "/var/spool/explsched/progress"


def report(*, step: int, total_steps: int | None = None, **metrics: float) -> None:
    """Report one or more metrics after `step` steps, e.g. `report(step=3, loss=0.5, accuracy=0.9)`.

    `total_steps` tells how many steps the job will run in all. Raises TypeError or ValueError for a call that can
    never be right: no metric, a step that is no whole number from 0 on, a metric that is no number.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be a whole number from 0 on, not {step!r}")
    if total_steps is not None and (not isinstance(total_steps, int) or total_steps < 1):
        raise ValueError(f"total_steps must be a whole number from 1 on, not {total_steps!r}")
    if not metrics:
        raise TypeError("report() needs at least one metric, such as loss=0.5")
    lines = []
    for name, value in metrics.items():
        number = float(value)
        line: dict[str, object] = {**_stamp(), "step": step, "metric": name}
        # JSON has no NaN: null marks the report as one without a usable value, which the daemon counts and shows.
        line["value"] = number if math.isfinite(number) else None
        if total_steps is not None:
            line["total_steps"] = total_steps
        lines.append(line)
    _append(lines)


def event(name: str, step: int | None = None) -> None:
    """Record `start`, `checkpoint` or `end` of the current run."""
    if name not in ("start", "checkpoint", "end"):
        raise ValueError(f"event must be start, checkpoint or end, not {name!r}")
    line: dict[str, object] = {**_stamp(), "event": name}
    if step is not None:
        line["step"] = step
    _append([line])


def progress_file() -> Path | None:
    """The file reports go to; None outside a Slurm job."""
    named = os.environ.get("EXPLSCHED_PROGRESS_FILE")
    if named:
        return Path(named)
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        return None
    return Path(os.environ.get("EXPLSCHED_SPOOL") or DEFAULT_SPOOL) / f"{job_id}.jsonl"


def _stamp() -> dict[str, object]:
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    return {"time_s": round(time.time(), 3), "restart": int(restart) if restart.isdigit() else 0}


_warned: set[str] = set()


def _append(lines: list[dict[str, object]]) -> None:
    """One write of whole lines: with O_APPEND, reports of several processes never mix."""
    path = progress_file()
    if path is None:
        return
    data = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
    try:
        # O_NOFOLLOW and the owner test: the spool is world-writable, somebody may have put a trap there.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o644)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise PermissionError(0, "belongs to somebody else")
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError as error:
        warning = f"explsched: progress is not reported: {path}: {error.strerror}\n"
        if warning not in _warned:
            _warned.add(warning)
            sys.stderr.write(warning)
