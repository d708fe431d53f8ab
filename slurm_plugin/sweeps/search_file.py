"""The file of a search, `sweep.yaml`: what to run, which hyper-parameters to try, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from explsched import strict_yaml
from explsched.atomic_file import replace_file_durably
from explsched.errors import ExplschedError
from explsched.job_options.table import CHECKPOINT, DIRECTION, METRIC, PARAMS, SPANK_PREFIX, SWEEP
from explsched.parameters import is_name, shown
from explsched.strict_yaml import Key, Section
from wrappers.sbatch_options import split

TRIAL = "{trial}"
"""Stands for the trial's own directory, in its command and in the options of sxrun."""

Value = bool | float | str
_MOST = 1_000_000
_WHOLE = 2**53  # whole numbers above are no longer told apart
_LARGEST_GRID = 100_000  # Optuna lists all points in each pass
_SHORT = {"-A": "account", "-M": "clusters", "-W": "wait", "-a": "array", "-p": "partition", "-q": "qos"}
_REFUSED = frozenset({"array", "clusters", "comment", "test-only", "wait", "wrap"})
"""Options of sbatch with which a trial is not one job of this cluster that a pass could find by its comment."""

_KEYS = {SWEEP.name: "name", METRIC.name: "metric", DIRECTION.name: "direction", PARAMS.name: "space"}
"""What says in the file what these job options say of other jobs."""


class SearchError(ExplschedError):
    """A search cannot be run as its file says, or cannot go on."""


def argument(value: Value) -> str:
    """The value as a trial's command is given it: whole words, and whole numbers with all their digits."""
    if isinstance(value, bool | str) or not float(value).is_integer() or abs(value) > _WHOLE:
        return shown(value)
    return str(int(value))


class SpaceSection(Section, frozen=True):
    """The values of one hyper-parameter: a list of them, or an interval."""

    values: Annotated[tuple[Value, ...], Meta(description="the values to choose from")] = ()
    low: Annotated[float | None, Meta(description="smallest value, of an interval")] = None
    high: Annotated[float | None, Meta(description="largest value, of an interval")] = None
    log: Annotated[bool, Meta(description="sample on a logarithmic scale")] = False
    integer: Annotated[bool, Meta(description="integers only")] = False

    def faults(self) -> Iterator[str]:
        """What is wrong with it."""
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        if self.values and (bounds or self.log or self.integer):
            yield "has values, which leave no room for low, high, log and integer"
        elif any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            yield f"values: accepted are finite numbers, words, true and false, found {list(self.values)}"
        elif len(set(map(argument, self.values))) < len(self.values):
            yield f"values: found one twice, as a command is given them, in {list(self.values)}"
        elif len(set(self.values)) < len(self.values):
            yield f"values: found a number and its truth value, which Optuna takes for equal, in {list(self.values)}"
        elif not self.values and len(bounds) < 2:
            yield "is empty: accepted are values, or low and high"
        elif self.low is not None and self.high is not None:
            if self.low > self.high:
                yield f"is empty: low {self.low:g} is above high {self.high:g}"
            if self.log and self.low <= 0:
                yield f"log: accepted with low above 0, found low {self.low:g}"
            if self.integer and not (self.low.is_integer() and self.high.is_integer()):
                yield f"integer: accepted with whole low and high, found {self.low:g} and {self.high:g}"
            if self.integer and max(-self.low, self.high) > _WHOLE:
                yield f"integer: accepted from -{_WHOLE} to {_WHOLE}, found {self.low:g} and {self.high:g}"
            if not math.isfinite(self.high - self.low):
                yield f"low and high are too far apart: found {self.low:g} and {self.high:g}"


class BudgetSection(Section, frozen=True):
    """When no more trials are begun; what comes first counts."""

    trials: Annotated[
        Annotated[int, Meta(ge=1, le=_MOST)] | None, Meta(description="total number of trials; null: no limit")
    ] = None
    gpu_hours: Annotated[
        Annotated[float, Meta(gt=0, le=10**9)] | None, Meta(description="total GPU-hours; null: no limit")
    ] = None


class TrialJobSection(Section, frozen=True):
    """How a trial runs, as a Slurm job."""

    gpus: Annotated[int, Meta(ge=0, le=100_000, description="GPUs, on one node")] = 1
    time: Annotated[str, Meta(min_length=1, description="time limit, as sbatch takes it")] = "60"
    checkpoint: Annotated[str | None, Meta(description="allow preemption: signal for a checkpoint; null: none")] = None
    early_stop: Annotated[bool, Meta(description="allow early stopping; false: a trial is never stopped")] = True
    sbatch: Annotated[tuple[str, ...], Meta(description="more options of sbatch")] = ()
    sxrun: Annotated[tuple[str, ...], Meta(description="options of sxrun, such as --follow {trial}/metrics.csv")] = ()

    @property
    def may_be_paused(self) -> bool:
        """Whether trials allow preemption, as `checkpoint` or an option of sbatch says."""
        return self.checkpoint is not None or any("checkpoint" in word for word in self.sbatch)

    def sbatch_options(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each of sbatch's options with its words, by its long name as far as that matters to a search."""
        for option in split(self.sbatch, {}).options:
            yield option.name or _SHORT.get(option.words[0][:2], ""), option.words


class _Kept(msgspec.Struct, frozen=True):
    """Of a copy of the file what is compared."""

    command: tuple[str, ...]


class SearchFile(Section, frozen=True):
    """Everything the file says."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="the sweep's name")]
    command: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="command; --KEY=VALUE arguments are appended, {trial} is the trial's directory"),
    ]
    space: Annotated[dict[str, SpaceSection], Meta(description="values of each hyper-parameter")]
    budget: BudgetSection
    metric: Annotated[str, Meta(min_length=1, max_length=128, description="metric that trainings report")] = "loss"
    direction: Annotated[Literal["min", "max"], Meta(description="whether to minimise or maximise it")] = "min"
    sampler: Annotated[
        Literal["tpe", "random", "grid"], Meta(description="Optuna's sampler that proposes hyper-parameters")
    ] = "tpe"
    seed: Annotated[int, Meta(ge=0, lt=2**31, description="random seed of the sampler")] = 0
    parallel: Annotated[
        int, Meta(ge=1, le=10_000, description="trials pending or running at a time, beside as many paused ones")
    ] = 4
    job: TrialJobSection = TrialJobSection()

    @property
    def grid_points(self) -> int | None:
        """How many trials there can be; None for samplers that never run out."""
        return math.prod(len(one.values) for one in self.space.values()) if self.sampler == "grid" else None

    def directory(self, path: Path) -> Path:
        """Where the search of this file at `path` keeps all that is known of it."""
        return _directory(path, self.name)


def keys() -> Iterator[Key]:
    """Every key of the file."""
    return strict_yaml.keys(SearchFile)


def load(path: Path) -> SearchFile:
    """Read and check the file. Raises `ConfigError`, or `SearchError` with a line for each fault."""
    faults: list[str] = []
    found = strict_yaml.read(SearchFile, strict_yaml.mapping(strict_yaml.file_text(path), path), faults)
    if found is not None and not faults:  # a key that was left out for a fault of its own contradicts nothing
        faults += _contradictions(found)
    if found is None or faults:
        raise SearchError("\n".join(f"{path}: {fault}" for fault in faults))
    return found


def of_pass(path: Path, name: str) -> SearchFile:
    """The file as it was last a search's of this name: `path`, or `keep`'s copy if it is another search's by now.

    Raises as `load`.
    """
    found = load(path)
    if found.name == name:
        return found
    copy = _copy(path, name)
    if not copy.exists():
        raise SearchError(f"{path}: is search {found.name!r} by now, and nothing was kept of {name!r}")
    return load(copy)


def keep(file: SearchFile, path: Path) -> None:
    """Keep what the file at `path` says for `of_pass`, in the search's directory. Raises OSError."""
    copy, text = _copy(path, file.name), msgspec.yaml.encode(file)
    if not copy.exists() or copy.read_bytes() != text:
        replace_file_durably(copy, text)


def kept_command(path: Path, name: str) -> tuple[str, ...] | None:
    """The command of what was kept last; None where nothing was, or a former release's is not understood.

    Raises OSError.
    """
    try:
        return msgspec.yaml.decode(_copy(path, name).read_bytes(), type=_Kept).command
    except (FileNotFoundError, msgspec.DecodeError):  # it is written anew now
        return None


def _directory(path: Path, name: str) -> Path:
    return path.with_name(f"{name}.sweep")


def _copy(path: Path, name: str) -> Path:
    return _directory(path, name) / "sweep.yaml"


def _contradictions(found: SearchFile) -> Iterator[str]:
    if not found.space:
        yield "space: is empty: there is nothing to search"
    for name, one in found.space.items():
        if not is_name(name):
            yield f"space: name {name!r}: must be a letter, then letters, digits and . / _ -"
        yield from (f"space.{name}: {fault}" for fault in one.faults())
        if found.sampler == "grid" and not one.values:
            yield f"space.{name}: sampler grid accepts values only"
    if (found.grid_points or 0) > _LARGEST_GRID:
        yield f"space: a grid of {found.grid_points} trials: accepted are {_LARGEST_GRID}; random takes any space"
    if found.budget.trials is None and found.budget.gpu_hours is None:
        yield "budget: is empty: accepted are trials, gpu_hours, or both"
    asks = any(word.startswith(("-G", "--g", "--tres")) for word in found.job.sbatch)
    if found.budget.trials is None and found.grid_points is None and not found.job.gpus and not asks:
        yield "budget.gpu_hours: trials without GPUs never use it up: give trials, too"
    follows = any(word.partition("=")[0] == "--follow" for word in found.job.sxrun)
    if follows and found.parallel > 1 and not any(TRIAL in word for word in found.job.sxrun):
        yield f"job.sxrun: with --follow all trials would follow one file: name one in {TRIAL}, their own directory"
    if strange := split(found.job.sbatch, {}).rest:
        yield f"job.sbatch: found {strange[0]!r}, accepted are options of sbatch"
    for name, words in found.job.sbatch_options():
        if name in _REFUSED:
            yield f"job.sbatch: found {words[0]!r}, accepted is what leaves a trial one job with the search's comment"
        elif key := _key_instead(words[0].partition("=")[0]):
            yield f"job.sbatch: found {words[0]!r}, which the key {key} of this file says"
    if found.job.checkpoint is not None:
        try:
            CHECKPOINT.canonical(found.job.checkpoint)
        except ValueError as error:
            yield f"job.checkpoint: {error}"


def _key_instead(option: str) -> str:
    """The key of the file that says what an option does, empty if none. sbatch takes beginnings of our plugin's."""
    beginning = option.removeprefix(f"--{SPANK_PREFIX}")
    for name, key in _KEYS.items():
        if option == f"--{name}" or (option != beginning and beginning and name.startswith(beginning)):
            return key
    return ""
