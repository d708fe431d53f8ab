"""Whether a job that was requeued had done its work: then its next run has nothing to do."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from explsched.progress import told
from wrappers import own_job

_PASS_S = 60.0  # longer than from the daemon's decision to the requeue


def digest_of(command: list[str]) -> str:
    """Tells the commands of a job apart. Short, so that a password among the words cannot be found by trying."""
    try:
        where = bytes(Path.cwd())
    except OSError:  # it has been removed, or is closed to the user
        where = b""
    return hashlib.sha256(b"\0".join((where, *map(os.fsencode, command)))).hexdigest()[:8]


def was_complete(digest: str, environment: Mapping[str, str]) -> bool:
    """Whether explsched has requeued the job in the moment in which its work was done.

    A training may end after the daemon's last look at it and before Slurm has noticed. Run again it would do once more
    what came after its last checkpoint. Who requeues a job by hand wants it to run again: Slurm's record, which owners
    cannot write, tells the two apart.
    """
    run = environment.get("SLURM_RESTART_COUNT", "0")
    is_alone = environment.get("SLURM_STEP_NUM_TASKS", "1") == "1"  # tasks of a step go on together or not at all
    if not run.isdecimal() or int(run) == 0 or not is_alone:
        return False
    ended_s = done_at(told().splitlines(), int(run) - 1, digest)
    if ended_s is None:
        return False
    return own_job.requeued_s(environment.get("SLURM_JOB_ID", ""), int(run) - 1) >= ended_s - _PASS_S


def done_at(lines: Iterable[bytes], run: int, command: str) -> float | None:
    """When a run had done its work, this command too, by the lines of the job's progress file; None if not certain.

    All that it began must have ended well by itself, at the last step, and be told apart. The next run, which asks at
    each command that it begins, must have reported no value yet, and begun only what was in the run, each once.
    """
    began: list[str] = []
    again = [command]
    ended, last, total, end_s = 0, -1, None, 0.0
    for text in lines:
        try:
            line = json.loads(text)
            of_run = line.get("restart", 0)
            if of_run > run and "value" in line:
                return None
            if of_run >= run and line.get("event") == "start":
                (began if of_run == run else again).append(str(line.get("command")))
            if of_run == run:
                if line.get("event") == "end" and line.get("status") == 0:
                    ended, end_s = ended + 1, float(line["time_s"])
                if "value" in line:
                    last, total = max(last, line["step"]), line.get("total_steps", total)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            continue  # a line that was cut, or that somebody else wrote
    is_known = len(set(began)) == len(began) and len(set(again)) == len(again) and set(began) >= set(again)
    return end_s if is_known and len(began) == ended and total is not None and last >= total - 1 else None
