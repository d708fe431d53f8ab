"""The configuration file: typed, strict, every key with a meaning, a unit and a default.

`explsched.yaml` is found through `--config`, then `SEXPLSCHED_CONFIG`, then `/etc/explsched/explsched.yaml`;
without any of them the defaults hold.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sched_policy import catalog
from sched_policy.errors import ExplschedError

DEFAULT_PATH = Path("/etc/explsched/explsched.yaml")
PATH_VARIABLE = "SEXPLSCHED_CONFIG"

Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]


class ConfigError(ExplschedError):
    """The configuration cannot be used. The message has one line per fault: file, key, what is accepted."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SlurmSection(_Section):
    """How to reach Slurm, and how strongly to steer it."""

    client: Literal["auto", "pyslurm", "cli"] = Field("auto", description="adapter; auto takes pyslurm if it works")
    timeout_s: Seconds = Field(30.0, description="longest wait for one Slurm command")
    partitions: tuple[str, ...] = Field((), description="partitions to steer; empty: all")
    site_factor_range: int = Field(
        1_000_000,
        ge=1000,
        le=1_000_000_000,
        description="site factors lie within +- half of this; compare with your PriorityWeight* values",
    )

    @field_validator("partitions", mode="before")
    @classmethod
    def _accept_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


class BackfillSection(_Section):
    """Promised starts."""

    reservation_depth: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="blocked jobs that are promised a start: 0 greedy, 1 EASY; null: the policy's own",
    )
    slack_s: Seconds = Field(120.0, description="a promised start is moved only if the plan moves by more than this")


class UtilitySection(_Section):
    """What progress is worth."""

    quantum_s: Seconds = Field(600.0, description="how far ahead a decision looks; a started job is left alone as long")
    stop_threshold: float = Field(
        0.01,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="share of a sweep's improvement below which a job may stop; 0: never",
    )
    silent_order: Literal["srsf", "fifo"] = Field("srsf", description="order of jobs that report no progress")


class PreemptionSection(_Section):
    """Limits on preemption of jobs that opted in with a checkpoint signal."""

    margin: float = Field(1.5, gt=1, le=1000, allow_inf_nan=False, description="score ratio needed to displace a job")
    most_per_pass: int = Field(8, ge=0, le=10000, description="preemptions per pass at most")
    most_per_hour: int = Field(200, ge=0, le=1_000_000, description="preemptions per hour at most")
    grace_s: Seconds = Field(120.0, description="time to write a checkpoint before the requeue")


class ProgressSection(_Section):
    """Where jobs report their progress."""

    spool: Path = Field(Path("/var/spool/explsched/progress"), description="directory of the progress files, mode 1777")

    @field_validator("spool", mode="before")
    @classmethod
    def _accept_text(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) else value


class BackpressureSection(_Section):
    """When to leave slurmctld alone."""

    server_threads: int = Field(64, ge=1, le=10000, description="slurmctld is busy from this many threads on (sdiag)")
    cycle_s: Seconds = Field(2.0, description="slurmctld is busy when its last main cycle took longer")
    widest_interval_s: Seconds = Field(300.0, description="the interval is doubled while slurmctld is busy, up to this")


class Config(_Section):
    """All of explsched.yaml."""

    policy: str = Field("explsched", description="a name that `sexplsched policies` lists")
    interval_s: Seconds = Field(15.0, description="time between two passes")
    slurm: SlurmSection = SlurmSection()
    backfill: BackfillSection = BackfillSection()
    utility: UtilitySection = UtilitySection()
    preemption: PreemptionSection = PreemptionSection()
    progress: ProgressSection = ProgressSection()
    backpressure: BackpressureSection = BackpressureSection()

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value not in catalog.names():
            near = get_close_matches(value, catalog.names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown policy {value!r}{hint} (known: {', '.join(catalog.names())})")
        return value

    def policy_options(self) -> catalog.PolicyOptions:
        """The part of the configuration that shapes a policy."""
        return catalog.PolicyOptions(
            reservation_depth=self.backfill.reservation_depth,
            quantum_s=self.utility.quantum_s,
            preempt_margin=self.preemption.margin,
            most_preemptions=self.preemption.most_per_pass,
            stop_threshold=self.utility.stop_threshold,
            silent_order=self.utility.silent_order,
        )


def find(option: Path | None = None) -> Path | None:
    """The file to read: the option, then the environment, then /etc; None if there is none of them."""
    if option is not None:
        return option
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return Path(named)
    return DEFAULT_PATH if DEFAULT_PATH.exists() else None


def load(option: Path | None = None) -> Config:
    """Read and check the configuration. Raises `ConfigError` listing every fault at once."""
    path = find(option)
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    return parse(text, path)


def parse(text: str, path: Path) -> Config:
    """Check the text of a configuration file; `path` only serves the messages."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from error
    if data is None:
        return Config()
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values, found a {type(data).__name__}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {_explain(fault)}" for fault in error.errors())) from error


def _explain(fault: Any) -> str:  # noqa: ANN401  pydantic's ErrorDetails is a private TypedDict
    """One line for one fault: the key in dots, what was found, what is accepted."""
    location = [str(part) for part in fault["loc"]]
    key = ".".join(location)
    if fault["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = get_close_matches(location[-1], known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown key {key!r}{hint} (known: {', '.join(known)})"
    return f"{key}: {fault['msg'].removeprefix('Value error, ')}, found {fault['input']!r}"


def _known_keys(section: list[str]) -> list[str]:
    model: type[BaseModel] = Config
    for name in section:
        field = model.model_fields[name].annotation
        if isinstance(field, type) and issubclass(field, BaseModel):
            model = field
    return list(model.model_fields)
