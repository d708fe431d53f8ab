"""The root of every error this project raises on purpose.

ExplschedError
├── PolicyError            a policy cannot be built or used as asked (`sched_policy`)
├── TraceError             a trace or cluster file cannot be used (`sched_policy.simulator`)
├── ConfigError            a configuration file is wrong (`slurm_plugin.config`)
├── SlurmError             Slurm refused, is missing or cannot be reached (`slurm_plugin.client`)
└── DevClusterError        a private cluster cannot be started or stopped (`slurm_plugin.devcluster`)
"""


class ExplschedError(Exception):
    """An error with a message meant for a person: what was found, where, and what is accepted."""


class PolicyError(ExplschedError):
    """A policy name or parameter is not usable; the message lists what is."""
