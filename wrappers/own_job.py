"""What Slurm tells an `sxrun` of the job that it is in."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from urllib.parse import parse_qs

from explsched.errors import warn
from explsched.job_options import comment
from explsched.job_options.command_line import exported
from explsched.job_options.table import METRIC, SCHEDULED
from wrappers import scontrol

_RECORD = "explsched-preemption:"  # as in `explsched.preemption_record`, which takes more than the standard library


def options(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the job's comment stands for, where sbatch was given that alone (`--comment=explsched:...`).

    sxbatch, the SPANK plugin and an sxrun around set them; that of the metric may be the user's own. Nothing outside of
    a job, where there is no scontrol, as in most containers, and in a step of several tasks: all would ask at once, and
    those that get no answer would listen to another signal than the others. What cannot be learnt or used is said.
    """
    is_told = any(option.variable in environment for option in SCHEDULED if option is not METRIC)
    is_alone = environment.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    if is_told or not is_alone or not environment.get("SLURM_JOB_ID") or not shutil.which("scontrol"):
        return {}
    job = _shown(environment["SLURM_JOB_ID"], "the job's comment")
    found = re.search(r"^\s*Comment=(.*)", job, re.MULTILINE)
    try:
        values = comment.read(found[1]) if found else None
    except ValueError as error:
        warn("sxrun", f"the job's options are ignored: {error}")
        return {}
    variables = exported(values or {}, (option for option in SCHEDULED if option.is_read_in_job))
    return {name: value for name, value in variables.items() if name not in environment}


def requeued_s(job_id: str, run: int) -> float:
    """When explsched decided to end a run of the job, by Slurm's record; 0 if it did not, or Slurm does not tell."""
    record = re.search(rf"^\s*AdminComment=.*?{_RECORD}(\S+)", _shown(job_id, "why the job was requeued"), re.MULTILINE)
    found = parse_qs(record[1]).get("p", []) if record else []
    times_s = {number: time_s for number, time_s, *_ in (one.split(",") for one in found if one.count(",") > 1)}
    return float(times_s.get(str(run), 0.0))


def _shown(job_id: str, what: str) -> str:
    """A job as Slurm shows it; nothing if it does not, which is said."""
    # The last task of an array has the array's own id, by which Slurm shows all tasks.
    shown = re.split(r"^(?=JobId=)", told(what, "job", job_id), flags=re.MULTILINE)
    return next((one for one in shown if re.match(rf"JobId={re.escape(job_id)}\b", one)), "")


def told(what: str, *entity: str) -> str:
    """What Slurm tells of a job or a node; nothing if it does not, which is said."""
    try:
        return scontrol.show(*entity)
    except (OSError, subprocess.SubprocessError) as error:
        warn("sxrun", f"Slurm does not report {what}: {error}")
        return ""
