"""What a job inherits from the one in which it is submitted, and must not."""

from __future__ import annotations

from collections.abc import Mapping

from explsched.job_options.table import SCHEDULED

_OF_ONE_JOB = frozenset(
    {
        "SLURM_GPUS_ON_NODE",
        "SLURM_GPUS_PER_NODE",
        "SLURM_JOB_GPUS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_RESTART_COUNT",
        "SLURM_SHARDS_ON_NODE",
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_STEP_NUM_TASKS",
        "EXPLSCHED_RENDEZVOUS_PORT",
        "EXPLSCHED_STAGES_DIRECTORY",
        "EXPLSCHED_SUB_BATCHES",
    }
)
"""What `sxrun`, reports and job scripts read as their own job's, and Slurm sets only where a job has that."""

_CONSENTS = frozenset(option.variable for option in SCHEDULED if option.is_consent)


def for_submission(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment to submit a job in: inside of a job without what is that one's alone, and its permissions."""
    left_out = _OF_ONE_JOB | _CONSENTS if environment.get("SLURM_JOB_ID") else frozenset[str]()
    return {name: value for name, value in environment.items() if name not in left_out}
