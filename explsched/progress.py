"""Reports a job's progress to the scheduler.

    import explsched
    explsched.report(step=0, params={"lr": 0.1, "width": 64})
    explsched.report(step=100, loss=0.25, total_steps=1000)

Each call appends lines to the job's file in the spool, which is `EXPLSCHED_SPOOL` or /var/spool/explsched/progress;
`explsched.spool` describes its layout. Outside a Slurm job nothing is written, unless `EXPLSCHED_PROGRESS_FILE` names a
file. Reporting raises only for wrong arguments and never blocks a training for long: if the file cannot be written,
one warning goes to standard error, and later reports try again.
"""

from __future__ import annotations

import json
import math
import operator
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from explsched.errors import warn
from explsched.job_options.table import CHECKPOINT
from explsched.parameters import Parameter, is_name, is_secret, of_value
from explsched.spool import DEFAULT_SPOOL as DEFAULT_SPOOL
from explsched.spool import Writer

UNDER_SXRUN = "EXPLSCHED_UNDER_SXRUN"
"""The variable that names the job of an `sxrun` around, which tells of the job's script."""

_LONGEST_NAME = 256  # with it a line stays below 4096 bytes, the longest that the daemon reads
_LARGEST = 10**15
_LONGEST_LINE = 4000  # parameters per job; a line with a single one is always shorter


def report(
    *,
    step: int,
    loss: float | None = None,
    total_steps: int | None = None,
    params: Mapping[str, object] | None = None,
    **metrics: float,
) -> None:
    """Report one or more metrics after `step` steps, e.g. `report(step=3, loss=0.5, accuracy=0.9)`.

    `total_steps` is the number of steps that the job will run in total. `params` are the job's hyper-parameters, such
    as `vars(arguments)`; reporting them once is enough, None values and what may be a secret by its name are skipped,
    and values other than numbers and booleans are reported as text. NumPy numbers and tensors with one element are
    accepted. Of several processes that train together one reports, such as rank 0: steps never go back within a run.
    Raises TypeError or ValueError for invalid arguments: neither metric nor parameter, a step that is not a whole
    number >= 0, a metric that is not a number.
    """
    if loss is not None:
        metrics = {"loss": loss, **metrics}
    if not metrics and not params:
        raise TypeError("report() needs at least one metric, such as loss=0.5, or params")
    lines = _lines(step, metrics, total_steps)
    tell_script()
    if params:
        tell(params)
    _append(lines, _about(step, metrics, total_steps))


def report_values(step: int, values: Mapping[str, float], total_steps: int | None = None) -> None:
    """Report metrics by names that are data, so that also `step` or `params` can be one. Raises as `report` does."""
    _append(_lines(step, values, total_steps), _about(step, values, total_steps))


def _about(step: int, values: Mapping[str, float], total_steps: int | None) -> str | None:
    """What `Writer.append` takes: no report of the last step, counted from 0 or 1, is left out."""
    return None if total_steps is not None and total_steps - 1 <= step <= total_steps else " ".join(values)


def _lines(step: int, values: Mapping[str, float], total_steps: int | None) -> list[dict[str, object]]:
    steps = {"step": _whole("step", step, 0)}
    totals = {} if total_steps is None else {"total_steps": _whole("total_steps", total_steps, 1)}
    return [{**_stamp(), **steps, "metric": name, **_value(name, value), **totals} for name, value in values.items()]


def event(name: str, step: int | None = None, status: int | None = None) -> None:
    """Record `start`, `checkpoint` or `end` of the current run; `status` is the exit status it ended with."""
    if name not in ("start", "checkpoint", "end"):
        raise ValueError(f"event must be start, checkpoint or end, not {name!r}")
    line: dict[str, object] = {**_stamp(), "event": name}
    if step is not None:
        line["step"] = int(step)  # counters may be NumPy's, or tensors
    if status is not None:
        line["status"] = status
    _append([line])


def tell_start(command: str, *, script_dies: bool | None = None) -> None:
    """Record that a run begins a command, of which `command` is a digest.

    `script_dies`: whether the checkpoint signal would end the job's batch script, None if that is not known.
    """
    known = {} if script_dies is None else {"script_dies": script_dies}
    _append([{**_stamp(), "event": "start", "command": command, **known}])


def tell_script(name: str = "") -> None:
    """Record whether the checkpoint signal would end the job's batch script, unless that is what the run has told.

    Slurm sends it to the script, and a job whose script dies has failed, whatever the training saves. The signal is the
    one that the environment names, else `name`, which "" does not know. Under `sxrun` that tells. Where preemption is
    known to be allowed, the user is warned of a script that would die.
    """
    of_job, place = os.environ.get(CHECKPOINT.variable), _destination()
    name = of_job or name
    is_settled = _judged.get(place, False) or (place in _judged and not name)
    if is_settled or os.environ.get(UNDER_SXRUN, "") == os.environ.get("SLURM_JOB_ID", ""):
        return
    from explsched.batch_script import DIES, would_die  # once in a process, and under sxrun never

    dies = would_die(name, os.environ)
    _judged[place] = bool(name) or dies is not None
    if dies is None or dies == _script_dies():
        return
    if dies and of_job:
        warn("explsched", DIES.format(name))
    _append([{**_stamp(), "params": {}, "script_dies": dies}])  # a daemon of before counts a line of its own as bad


def _script_dies() -> bool | None:
    """What this run has told of its script, as each of several trainings in a script would; None if nothing."""
    run = _stamp()["restart"]
    for text in reversed(told().splitlines()):
        if b'"script_dies"' in text:
            with suppress(ValueError, KeyError, TypeError):  # a line that was cut, or that somebody else wrote
                line = json.loads(text)
                if line["restart"] == run:
                    return bool(line["script_dies"])
    return None


def told() -> bytes:
    """The job's progress file: the reports of all its runs so far. Empty if it cannot be read."""
    writer = _writer()
    return b"" if writer is None else writer.written()


def parameters(params: Mapping[str, object]) -> list[dict[str, object]]:
    """Lines that report the job's hyper-parameters; none if this process has reported the same in this run.

    Others may see them: what may be a secret is left out.
    """
    if not isinstance(params, Mapping):
        raise TypeError(f"params must be a mapping of names to values, such as vars(arguments), not {params!r:.80}")
    stamp = _stamp()
    named = {str(name): value for name, value in params.items()}
    known = {name: value for name, value in named.items() if is_name(name) and value is not None}
    values = {name: of_value(value) for name, value in known.items() if not is_secret(name, value)}
    global _told
    telling = (_destination(), stamp["restart"], values)
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


def tell_stages(stages: str) -> None:
    """Report the stage times of an iteration, in the form of the option `stages`: ITERATION/IO/GPU/NET in ms."""
    _append([{**_stamp(), "stages": stages}])


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
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond floats
        number = math.inf if value > 0 else -math.inf
    except TypeError as error:
        raise TypeError(f"metric {name!r} must be a number, not of type {type(value).__name__}") from error
    # JSON has no NaN: null marks a report without a usable value, which the daemon counts and shows.
    return {"value": number} if math.isfinite(number) else {"value": None, "bad": str(number)}


def _stamp() -> dict[str, object]:
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    return {"time_s": round(time.time(), 3), "restart": int(restart) if restart.isdecimal() else 0}


_writers: dict[tuple[str, ...], Writer] = {}
_judged: dict[tuple[str, ...], bool] = {}
"""The jobs whose scripts `tell_script` has judged, and whether there is nothing more to tell."""
_told: tuple[tuple[str, ...], object, dict[str, Parameter]] | None = None


def _append(lines: list[dict[str, object]], about: str | None = None) -> None:
    writer = _writer()
    if writer is not None:
        data = [json.dumps(line, allow_nan=False).encode() + b"\n" for line in lines]
        writer.append(data, about)


def _destination() -> tuple[str, ...]:
    """The named file, or the spool and the job's id; nothing outside a Slurm job."""
    named = os.environ.get("EXPLSCHED_PROGRESS_FILE", "")
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if named:
        return (named,)
    if job_id.isascii() and job_id.isdecimal():
        return (os.environ.get("EXPLSCHED_SPOOL") or DEFAULT_SPOOL, job_id)
    return ()


def _writer() -> Writer | None:
    """The writer of the progress file; None outside a Slurm job."""
    destination = _destination()
    if not destination:
        return None
    # A forked process needs its own writers: a lock held by another thread would stay locked in it for ever.
    key = (str(os.getpid()), *destination)
    if key not in _writers:
        spool = Path(destination[0])
        _writers[key] = Writer(spool) if len(destination) == 1 else Writer(spool / f"{destination[1]}.jsonl", spool)
    return _writers[key]
