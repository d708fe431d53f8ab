"""Reports a job's progress to the scheduler.

    import explsched
    explsched.report(step=0, params={"lr": 0.1, "width": 64})
    explsched.report(step=100, loss=0.25, total_steps=1000)

Each call appends lines to `<spool>/<job id>.jsonl`; the spool is `EXPLSCHED_SPOOL` or /var/spool/explsched/progress.
Outside a Slurm job nothing is written, unless `EXPLSCHED_PROGRESS_FILE` names a file. Reporting never raises into a
training for what is not the training's fault: if the file cannot be written, one warning goes to standard error and
this process reports nothing more.
"""

from __future__ import annotations

import errno
import json
import math
import operator
import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from explsched.parameters import Parameter, is_name, of_value

DEFAULT_SPOOL = "/var/spool/explsched/progress"
_LONGEST_NAME = 256  # with it a line stays below 4096 bytes, the longest that the daemon reads
_LARGEST = 10**15
_LONGEST_LINE = 4000  # of parameters; a line with one of them is always shorter


def report(
    *,
    step: int,
    loss: float | None = None,
    total_steps: int | None = None,
    params: Mapping[str, object] | None = None,
    **metrics: float,
) -> None:
    """Report one or more metrics after `step` steps, e.g. `report(step=3, loss=0.5, accuracy=0.9)`.

    `total_steps` tells how many steps the job will run in all. `params` are the job's hyper-parameters, such as
    `vars(arguments)`; once is enough, None among them is passed over, and what is neither number nor truth value counts
    as text. Numbers of NumPy and tensors with one element are accepted. Raises TypeError or ValueError for a call that
    can never be right: neither metric nor parameter, a step that is no whole number from 0 on, a metric that is no
    number.
    """
    steps = {"step": _whole("step", step, 0)}
    totals = {} if total_steps is None else {"total_steps": _whole("total_steps", total_steps, 1)}
    if loss is not None:
        metrics = {"loss": loss, **metrics}
    if not metrics and not params:
        raise TypeError("report() needs at least one metric, such as loss=0.5, or params")
    told = parameters(params) if params else []
    _append(
        told
        + [{**_stamp(), **steps, "metric": name, **_value(name, value), **totals} for name, value in metrics.items()]
    )


def event(name: str, step: int | None = None) -> None:
    """Record `start`, `checkpoint` or `end` of the current run."""
    if name not in ("start", "checkpoint", "end"):
        raise ValueError(f"event must be start, checkpoint or end, not {name!r}")
    line: dict[str, object] = {**_stamp(), "event": name}
    if step is not None:
        line["step"] = step
    _append([line])


def parameters(params: Mapping[str, object]) -> list[dict[str, object]]:
    """Lines that tell the job's hyper-parameters; none if this process has told the same for this run before."""
    stamp = _stamp()
    values = {name: of_value(value) for name, value in params.items() if is_name(name) and value is not None}
    global _told
    telling = (progress_file(), stamp["restart"], values)
    if not values or telling == _told:
        return []
    _told = telling
    together: dict[str, object] = {**stamp, "params": values}
    if len(json.dumps(together)) <= _LONGEST_LINE:
        return [together]
    return [{**stamp, "params": {name: value}} for name, value in values.items()]


def tell(params: Mapping[str, object]) -> None:
    """Report the job's hyper-parameters alone."""
    _append(parameters(params))


def progress_file() -> Path | None:
    """The file reports go to; None outside a Slurm job."""
    named = os.environ.get("EXPLSCHED_PROGRESS_FILE")
    if named:
        return Path(named)
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not (job_id.isascii() and job_id.isdecimal()):
        return None
    return Path(os.environ.get("EXPLSCHED_SPOOL") or DEFAULT_SPOOL) / f"{job_id}.jsonl"


def _whole(name: str, value: int, least: int) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not least <= number <= _LARGEST:
        raise ValueError(f"{name} must be a whole number from {least} on, not {value!r}")
    return number


def _value(name: str, value: float) -> dict[str, object]:
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"the metric's name has {len(name)} characters, {_LONGEST_NAME} are accepted")
    if value is None or isinstance(value, bool | str | bytes):
        raise TypeError(f"metric {name!r} must be a number, not {value!r}")
    number = float(value)
    # JSON has no NaN: null marks the report as one without a usable value, which the daemon counts and shows.
    return {"value": number} if math.isfinite(number) else {"value": None, "bad": str(number)}


def _stamp() -> dict[str, object]:
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    return {"time_s": round(time.time(), 3), "restart": int(restart) if restart.isdecimal() else 0}


_given_up: set[Path] = set()
_told: tuple[Path | None, object, dict[str, Parameter]] | None = None


def _append(lines: list[dict[str, object]]) -> None:
    """One write per line: with O_APPEND, reports of several processes never mix."""
    path = progress_file()
    if path is None or path in _given_up:
        return
    try:
        # O_NOFOLLOW and the owner test: the spool is world-writable, somebody may have put a trap there.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o644)
        try:
            _claim(descriptor)
            for line in lines:
                data = json.dumps(line, allow_nan=False).encode() + b"\n"
                if os.write(descriptor, data) != len(data):
                    raise OSError(errno.ENOSPC, "a line was written in part")
        finally:
            os.close(descriptor)
    except OSError as error:
        _given_up.add(path)
        sys.stderr.write(f"explsched: progress is not reported: {path}: {error.strerror}\n")


def _claim(descriptor: int) -> None:
    """Raise OSError unless this is a regular file of ours; make sure that the daemon can read it."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    if status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "belongs to somebody else")
    if status.st_size == 0 and status.st_mode & 0o777 != 0o644:  # a umask such as 077 would shut the daemon out
        os.fchmod(descriptor, 0o644)
