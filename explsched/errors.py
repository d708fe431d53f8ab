"""The root of every error this project raises on purpose.

ExplschedError
├── PolicyError            a policy cannot be built or used as asked (`sched_policy`)
├── TraceError             a trace or cluster file cannot be used (`simulation`)
├── SimulationSettingsError  a setting of a simulation is out of range (`simulation`)
├── SimulationError        a simulation cannot go on (`simulation`)
├── PlotError              a picture cannot be drawn (`simulation`)
├── WorkerError            a worker process died (`slurm_plugin.cli`)
├── ConfigError            a configuration file is wrong (`slurm_plugin.config`)
├── ProfileError           profiles of kernels or their manager cannot be used (`kernel_intercept.profile`)
├── SlurmError             Slurm refused, is missing or cannot be reached
│   └── SlurmUnreachableError
├── GatewayError           the inference gateway cannot do what is asked (`inference_gateway.errors`)
└── DevClusterError        a private cluster cannot be started or stopped (`slurm_plugin.devcluster`)
"""


class ExplschedError(Exception):
    """An error with a message meant for a person: what was found, where, and what is accepted."""


class PolicyError(ExplschedError):
    """A policy name or parameter is not usable; the message lists what is."""


class SlurmError(ExplschedError):
    """Slurm refused, is missing, answered something unreadable or cannot be reached."""


class SlurmUnreachableError(SlurmError):
    """slurmctld does not answer (down, restarting, timed out). Worth trying again later."""
