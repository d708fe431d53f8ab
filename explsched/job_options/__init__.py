"""The one table of job options, and how they are read from flags, variables and comments.

The table is `table`; `values` has the kinds of values, `environment` and `comment` read and write options there.
`native` makes the C header from it, `lua` the table of job_submit.lua, `documentation` help, manual and docs.
Only the standard library, and little of it: this is imported inside jobs.
"""

from explsched.job_options.table import (
    CHECKPOINT,
    DIRECTION,
    EARLY_STOP,
    ELASTIC,
    FOLLOW,
    FOLLOWING,
    JOB_CLASS,
    LIMIT,
    MEMORY,
    METRIC,
    MPS,
    OPTIONS,
    PARAMS,
    REQUEST,
    SCHEDULED,
    SHARE,
    SHARING,
    STAGES,
    STEP_KEY,
    SWEEP,
    VALUE_KEY,
    Former,
    Option,
    Topic,
)

__all__ = [
    "CHECKPOINT",
    "DIRECTION",
    "EARLY_STOP",
    "ELASTIC",
    "FOLLOW",
    "FOLLOWING",
    "JOB_CLASS",
    "LIMIT",
    "MEMORY",
    "METRIC",
    "MPS",
    "OPTIONS",
    "PARAMS",
    "REQUEST",
    "SCHEDULED",
    "SHARE",
    "SHARING",
    "STAGES",
    "STEP_KEY",
    "SWEEP",
    "VALUE_KEY",
    "Former",
    "Option",
    "Topic",
]
