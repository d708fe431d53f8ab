"""What a job inherits from the one in which it is submitted, and a command from an `sxrun` around its own."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from explsched.job_options.command_line import read
from explsched.job_options.table import SCHEDULED

_OF_ONE_JOB = frozenset(
    {
        "SLURM_GPUS_ON_NODE",
        "SLURM_GPUS_PER_NODE",
        "SLURM_JOB_GPUS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_RESTART_COUNT",
        "SLURM_SHARDS_ON_NODE",
        "SLURM_STEP_GPUS",
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_STEP_NUM_TASKS",
        "EXPLSCHED_RENDEZVOUS_PORT",
        "EXPLSCHED_STAGES_DIRECTORY",
        "EXPLSCHED_SUB_BATCHES",
    }
)
"""What `sxrun`, reports and job scripts read as their own job's, and Slurm sets only where a job has that."""

_MARK = "EXPLSCHED_SET_BY_SXRUN"
_BYTES = "surrogateescape"  # a value may be no UTF-8
_CONSENTS = frozenset(option.variable for option in SCHEDULED if option.is_consent)


def for_submission(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment to submit a job in: without job options that have no usable value, which are ignored there too.

    Inside of a job also without what is that one's alone, and its permissions.
    """
    usable = read(environment, SCHEDULED).values
    left_out = {option.variable for option in SCHEDULED if environment.get(option.variable)}
    left_out -= {option.variable for option in SCHEDULED if option.name in usable}
    left_out |= _OF_ONE_JOB | _CONSENTS if environment.get("SLURM_JOB_ID") else set()
    return {name: value for name, value in without_marked(environment).items() if name not in left_out}


def with_marked(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of one command, and variables for it alone: a job that it submits starts without them.

    So does an `sxrun` inside of it that shares a GPU. What has been marked before stays so.
    """
    told = dict(parse_qsl(environment.get(_MARK, ""), keep_blank_values=True, errors=_BYTES))
    return {**environment, **variables, _MARK: urlencode({**told, **variables}, errors=_BYTES)}


def without_marked(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what `with_marked` has set in it; what has another value since is somebody else's."""
    theirs = {(_MARK, told := environment.get(_MARK, "")), *parse_qsl(told, keep_blank_values=True, errors=_BYTES)}
    return {name: value for name, value in environment.items() if (name, value) not in theirs}
