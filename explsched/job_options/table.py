"""The table of job options: everything that a job can tell explsched, each spelt here and nowhere else.

An option has one name. Its spellings follow from it: `--NAME` of sxbatch, sxrun or both (`commands`), `--expl-NAME` of
sbatch, srun and salloc (the SPANK plugin), `EXPLSCHED_NAME` in the environment, the key NAME of the word `explsched:`
in the job's comment, and the key NAME in YAML. Environment and YAML have `_` for `-`. Plugin and comment have those of
sxbatch.

`values` has the kinds of values; `command_line` reads options there and in the environment, `comment` in a comment;
`generated` makes what C, Lua and the docs have of the table. Only the standard library, and little of it: this is
imported inside jobs.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from explsched.job_options import values
from explsched.job_options.values import Kind, one_of

SPANK_PREFIX = "expl-"
VARIABLE_PREFIX = "EXPLSCHED_"


class Topic(Enum):
    """What an option is about."""

    LEARNING = "learning"
    """How the job learns, and what may be done to it for that."""

    PLACEMENT = "placement"
    """Which GPUs the job can use."""

    SHARING = "sharing"
    """How the job's kernels share a GPU. Giving one asks for the kernels to be managed."""

    FOLLOWING = "following"
    """Where sxrun and sxreport find the job's progress, if it does not report."""


class Option(NamedTuple):
    """One option.

    Attributes:
        name: the one name, words joined by `-`.
        kind: what its values look like.
        metavar: what stands for the value in help texts; empty for a switch.
        help: its meaning, one phrase.
        topic: what it is about.
        is_consent: whether it permits something that is done to the job. A consent is never taken from the environment
            of a job that submits another: nobody consented for the new one.
        is_read_in_job: whether programs inside the job read its variable.
        is_scheduled: whether the scheduler learns of it; else only sxrun has it.

    """

    name: str
    kind: Kind
    metavar: str
    help: str
    topic: Topic
    is_consent: bool = False
    is_read_in_job: bool = False
    is_scheduled: bool = True

    @property
    def flag(self) -> str:
        """As its commands have it."""
        return f"--{self.name}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that take it: sxbatch what the scheduler learns of, sxrun what concerns its own command."""
        is_of_sxrun = self.topic in (Topic.SHARING, Topic.FOLLOWING)
        return (*["sxbatch"] * self.is_scheduled, *["sxrun"] * is_of_sxrun)

    @property
    def spank_name(self) -> str:
        """As sbatch, srun and salloc have it, without the dashes."""
        return f"{SPANK_PREFIX}{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return VARIABLE_PREFIX + self.yaml_key.upper()

    @property
    def key(self) -> str:
        """The key in the job's comment."""
        return self.name

    @property
    def yaml_key(self) -> str:
        """The key in a YAML file, also the attribute that argparse makes of the flag."""
        return self.name.replace("-", "_")

    def canonical(self, text: str) -> str:
        """The form in which a value is written everywhere. Raises ValueError with what is accepted."""
        try:
            return self.kind.canonical(text)
        except ValueError as error:
            raise ValueError(f"found {text[:80]!r}, accepted: {self.kind.accepted}") from error


SWEEP = Option(
    "sweep",
    values.TEXT,
    "NAME",
    "sweep that the job belongs to: trainings of which the best model is wanted",
    Topic.LEARNING,
)
METRIC = Option(
    "metric",
    values.TEXT,
    "NAME",
    "metric that measures progress (default: loss)",
    Topic.LEARNING,
    is_read_in_job=True,
)
DIRECTION = Option(
    "direction",
    one_of("min", "max"),
    "min|max",
    "whether the metric should fall or rise (default: min)",
    Topic.LEARNING,
)
PARAMS = Option(
    "params",
    values.HYPER_PARAMETERS,
    "K=V,...",
    "hyper-parameters of the training; --key=value and --key value of sxrun's command and explsched.report add to them",
    Topic.LEARNING,
)
CHECKPOINT = Option(
    "checkpoint",
    values.SIGNAL,
    "SIGNAL",
    "allow preemption: on SIGNAL the job saves a checkpoint, then it is requeued",
    Topic.LEARNING,
    is_consent=True,
    is_read_in_job=True,
)
EARLY_STOP = Option(
    "early-stop",
    values.SWITCH,
    "",
    "allow early stopping: the job is cancelled when further training is not worth its GPU time",
    Topic.LEARNING,
    is_consent=True,
)
JOB_CLASS = Option(
    "job-class",
    one_of("guaranteed", "opportunistic"),
    "CLASS",
    "guaranteed: dedicated GPUs (default); opportunistic: GPUs left idle by guaranteed jobs",
    Topic.PLACEMENT,
)
ELASTIC = Option(
    "elastic",
    values.SIZES,
    "MIN-MAX[/N]",
    "the job can run with MIN to MAX GPUs on one node, or with N on each of several nodes",
    Topic.PLACEMENT,
    is_consent=True,
    is_read_in_job=True,
)
STAGES = Option(
    "stages",
    values.STAGES,
    "ITERATION/IO/GPU/NET",
    "milliseconds of an iteration and of its stages, running alone; for policies that group jobs on a GPU",
    Topic.PLACEMENT,
)
SHARE = Option(
    "share",
    one_of("high", "best-effort"),
    "CLASS",
    "share the GPU: kernels of class high take precedence; best-effort uses the idle time",
    Topic.SHARING,
    is_read_in_job=True,
)
REQUEST = Option(
    "request",
    values.FRACTION,
    "FRACTION",
    "guaranteed fraction of the GPU's time",
    Topic.SHARING,
    is_read_in_job=True,
)
LIMIT = Option(
    "limit",
    values.FRACTION,
    "FRACTION",
    "maximum fraction of the GPU's time",
    Topic.SHARING,
    is_read_in_job=True,
)
MPS = Option(
    "mps",
    values.SWITCH,
    "",
    "start CUDA MPS for the job; without it the GPU is time-sliced between processes",
    Topic.SHARING,
    is_read_in_job=True,
    is_scheduled=False,
)
MEMORY = Option(
    "memory",
    values.MEMORY_AMOUNT,
    "SIZE",
    "GPU memory limit of each process, such as 20G; exceeding it is an out-of-memory error",
    Topic.SHARING,
    is_read_in_job=True,
    is_scheduled=False,
)

FOLLOW = Option(
    "follow",
    values.FILE_PATH,
    "FILE",
    "read progress from the file that the command writes: .csv, .tsv, .jsonl, TensorBoard's events or their directory",
    Topic.FOLLOWING,
    is_scheduled=False,
)
STEP_KEY = Option(
    "step-key",
    values.TEXT,
    "NAME",
    "column or key of the step in a file that is followed (default: step)",
    Topic.FOLLOWING,
    is_scheduled=False,
)
VALUE_KEY = Option(
    "value-key",
    values.TEXT,
    "NAME",
    "column, key or tag of the value in a file that is followed (default: the metric's name)",
    Topic.FOLLOWING,
    is_scheduled=False,
)
MEASURE_STAGES = Option(
    "measure-stages",
    values.SWITCH,
    "",
    "measure and report how long iterations of a PyTorch training read, compute and communicate",
    Topic.FOLLOWING,
    is_scheduled=False,
)

OPTIONS = (
    SWEEP,
    METRIC,
    DIRECTION,
    PARAMS,
    CHECKPOINT,
    EARLY_STOP,
    JOB_CLASS,
    ELASTIC,
    STAGES,
    SHARE,
    REQUEST,
    LIMIT,
    MPS,
    MEMORY,
    FOLLOW,
    STEP_KEY,
    VALUE_KEY,
    MEASURE_STAGES,
)
"""All options."""

SCHEDULED = tuple(option for option in OPTIONS if option.is_scheduled)
"""Those that the scheduler learns of: options of sxbatch, of the SPANK plugin, and keys of the comment."""

SHARING = tuple(option for option in OPTIONS if option.topic is Topic.SHARING)
"""Those of sxrun about a shared GPU."""

FOLLOWING = tuple(option for option in OPTIONS if option.topic is Topic.FOLLOWING)
"""Those of sxrun about progress."""
