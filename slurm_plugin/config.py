"""The configuration file: typed, strict, every key with a meaning, a unit and a default.

`explsched.yaml` is found through `--config`, then `SEXPLSCHED_CONFIG`, then `/etc/explsched/explsched.yaml`;
without any of them the defaults hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from explsched import strict_yaml
from explsched.preemption_record import PreemptionRecord
from explsched.strict_yaml import ConfigError as ConfigError
from explsched.strict_yaml import Section
from sched_policy import catalog

DEFAULT_PATH = Path("/etc/explsched/explsched.yaml")
PATH_VARIABLE = "SEXPLSCHED_CONFIG"
_EXAMPLE_HEAD = """\
## explsched.yaml: configuration of sexplschedd(8). Every key is optional and listed with its default, commented out:
## remove one # from a line (and from its section's line) to set it. explsched.yaml(5) explains the keys,
## `sexplsched config check` checks this file, `systemctl reload sexplschedd` applies it.
"""
_PASSES_TO_LEAVE = 4
"""Passes until a job that should save and leave has left, its grace period not counted; some to spare."""


def _seconds(description: str) -> Meta:
    return Meta(gt=0, le=86400, description=description, extra={"unit": "seconds"})


class SlurmSection(Section, frozen=True):
    """How to reach Slurm, and how strongly to steer it."""

    client: Annotated[
        Literal["auto", "pyslurm", "cli"], Meta(description="Slurm client; auto: pyslurm if it works, else cli")
    ] = "auto"
    timeout_s: Annotated[float, _seconds("longest wait for one Slurm command")] = 30.0
    partitions: Annotated[tuple[str, ...], Meta(description="partitions to steer; empty: all")] = ()
    site_factor_range: Annotated[
        int,
        Meta(
            ge=1000,
            le=1_000_000_000,
            description="order.scope partition: site factors lie between 0 and this; compare with PriorityWeight*",
        ),
    ] = 1_000_000
    order_depth: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="order.scope partition: pending jobs per partition that are reordered; "
            "the rest keep Slurm's order",
        ),
    ] = 1000
    max_per_pass: Annotated[
        int, Meta(ge=1, le=1_000_000, description="maximum site factors written per pass, users (or accounts) in turn")
    ] = 200


class OrderSection(Section, frozen=True):
    """Among whom jobs are put in order, and how long a job may wait."""

    scope: Annotated[
        Literal["user", "account", "partition"],
        Meta(
            description="user, account: jobs swap queue positions with jobs of the same user or account only; "
            "partition: the policy orders all jobs, for a partition with one owner"
        ),
    ] = "user"
    max_wait_s: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="after this queueing delay a job comes first in its scope and is no longer preempted",
            extra={"unit": "seconds"},
        ),
    ] = 259_200.0
    site_factor_file: Annotated[Path, Meta(description="file with the site factors that the daemon has written")] = (
        Path("/var/lib/explsched/site_factors.json")
    )


class BackfillSection(Section, frozen=True):
    """Reservations of blocked jobs."""

    reservation_depth: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(description="blocked jobs that get a reservation: 0 greedy, 1 EASY; null: as the policy"),
    ] = None
    slack_s: Annotated[float, _seconds("a reservation is moved only if the planned start moves by more than this")] = (
        120.0
    )


class UtilitySection(Section, frozen=True):
    """Utility of progress."""

    quantum_s: Annotated[
        float,
        _seconds(
            "look-ahead of a decision; a started job is not preempted for as long (a sweep's training, objective best: "
            "until it has reported)"
        ),
    ] = 600.0
    stop_threshold: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="share of a sweep's improvement below which a job may be stopped (objective total); 0: never",
        ),
    ] = 0.05
    stop_leader_threshold: Annotated[
        float,
        Meta(ge=0, le=1, description="the same for a job that may become its sweep's best (objective total); 0: never"),
    ] = 0.0
    stop_min_share: Annotated[
        float,
        Meta(
            ge=0, le=1, description="share of its steps that a job must run before it may be stopped (objective total)"
        ),
    ] = 0.1
    objective: Annotated[
        Literal["best", "total"],
        Meta(description="aim of policy explsched: each sweep's best model, or the sum of all improvements"),
    ] = "best"
    sweep_strategy: Annotated[
        str,
        Meta(
            description="early-stopping strategy within a sweep (objective best): adaptive; the published asha, "
            "hyperband, median-stop; or another package's"
        ),
    ] = "adaptive"
    no_report_order: Annotated[Literal["srsf", "fifo"], Meta(description="order of jobs that report no progress")] = (
        "srsf"
    )


HOUR_S = 3600.0


class PreemptionSection(Section, frozen=True):
    """Limits on preemption of jobs that opted in with a checkpoint signal."""

    margin: Annotated[
        float,
        Meta(
            gt=1,
            le=1000,
            description="score ratio needed to preempt a job; within sweeps (objective best) the strategy decides",
        ),
    ] = 1.5
    max_per_pass: Annotated[
        int,
        Meta(
            ge=0,
            le=10000,
            description="maximum preemptions per pass, of jobs by score; pauses in sweeps, groups and requeues before "
            "a time limit are not counted",
        ),
    ] = 8
    max_per_hour: Annotated[int, Meta(ge=0, le=1_000_000, description="maximum preemptions per hour")] = 200
    max_per_job_per_hour: Annotated[int, Meta(ge=0, le=12, description="maximum preemptions of one job per hour")] = 6
    max_per_job: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="maximum preemptions of one job in total; null: no limit"),
    ] = None
    reach: Annotated[
        Literal["scope", "fair-share"],
        Meta(
            description="scope: jobs are preempted only for jobs of their order.scope; fair-share: also for a job "
            "whose association has 1.5 times their fair-share factor"
        ),
    ] = "scope"
    grace_s: Annotated[float, _seconds("grace period: time to write a checkpoint before the requeue")] = 120.0

    def is_spent(self, record: PreemptionRecord, now_s: float) -> bool:
        """Whether a job has been preempted as often as it may be, for now or for good."""
        in_all = self.max_per_job is not None and record.count >= self.max_per_job
        return in_all or record.since(now_s - HOUR_S) >= self.max_per_job_per_hour


class ElasticSection(Section, frozen=True):
    """Elastic jobs."""

    restart_s: Annotated[float, _seconds("cost of a restart, until measured")] = 60.0
    gain: Annotated[
        float, Meta(ge=1, le=1000, description="a running job is resized only if it saves this many restarts")
    ] = 3.0


class LasSection(Section, frozen=True):
    """Least attained service, the order of tiresias and muri-l."""

    limits_gpu_s: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        Meta(min_length=1, max_length=16, description="GPU-seconds at which a job is demoted to the next queue"),
    ] = (3250.0, 7200.0)
    starvation: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="a job that waited this many times its run time returns to the first queue; 0: never",
        ),
    ] = 0.0


class ProgressSection(Section, frozen=True):
    """Where jobs report their progress."""

    spool: Annotated[Path, Meta(description="directory of the progress files: mode 3777, of the daemon's group")] = (
        Path("/var/spool/explsched/progress")
    )


class AuditSection(Section, frozen=True):
    """Audit log of all changes in Slurm."""

    file: Annotated[Path, Meta(description="audit file, JSON lines, readable by the daemon's group")] = Path(
        "/var/log/explsched/audit.jsonl"
    )
    max_mib: Annotated[
        float, Meta(gt=0, le=10_000, description="size at which the file is rotated", extra={"unit": "MiB"})
    ] = 64.0
    kept: Annotated[int, Meta(ge=0, le=1000, description="rotated files that are kept")] = 9


class StateSection(Section, frozen=True):
    """What the daemon publishes after each pass."""

    directory: Annotated[
        Path, Meta(description="directory for state and metrics, ideally on a file system shared with login nodes")
    ] = Path("/var/spool/explsched/state")
    readers: Annotated[
        Literal["group", "all"],
        Meta(
            description="who may read the state file with the reports of all jobs: the daemon's group, or everybody "
            "(unless PrivateData hides jobs); others read their own part from state.socket"
        ),
    ] = "group"
    socket: Annotated[
        Path,
        Meta(description="Unix socket that sends each user of this host the visible part of the state"),
    ] = Path("/run/explsched/state.sock")


class RunTimesSection(Section, frozen=True):
    """Run times learnt from sacct."""

    history_days: Annotated[
        float,
        Meta(
            ge=0,
            le=3660,
            description="predict run times from similar jobs of this many past days; 0: off",
        ),
    ] = 0.0
    refresh_s: Annotated[float, _seconds("time between two calls of sacct")] = 900.0


class BackpressureSection(Section, frozen=True):
    """When slurmctld counts as busy."""

    server_threads: Annotated[
        int, Meta(ge=1, le=10000, description="slurmctld is busy from this many threads on (sdiag)")
    ] = 64
    cycle_s: Annotated[float, _seconds("slurmctld is busy when its last main cycle took longer")] = 2.0
    max_interval_s: Annotated[float, _seconds("longest backoff between passes while slurmctld is busy")] = 300.0


class Config(Section, frozen=True):
    """All of explsched.yaml."""

    policy: Annotated[str, Meta(description="a name that `sexplsched policies` lists")] = "explsched"
    interval_s: Annotated[float, _seconds("time between two passes")] = 15.0
    slurm: SlurmSection = SlurmSection()
    order: OrderSection = OrderSection()
    backfill: BackfillSection = BackfillSection()
    utility: UtilitySection = UtilitySection()
    preemption: PreemptionSection = PreemptionSection()
    elastic: ElasticSection = ElasticSection()
    las: LasSection = LasSection()
    progress: ProgressSection = ProgressSection()
    audit: AuditSection = AuditSection()
    state: StateSection = StateSection()
    run_times: RunTimesSection = RunTimesSection()
    backpressure: BackpressureSection = BackpressureSection()

    @property
    def leave_within_s(self) -> float:
        """How long it takes at most until a job that the plan asks to save has left, with some passes to spare."""
        return self.preemption.grace_s + _PASSES_TO_LEAVE * self.interval_s

    def claimed(self) -> dict[str, Path]:
        """By key, the directories that are one cluster's alone, whether its daemon runs or not."""
        return {"order.site_factor_file": self.order.site_factor_file.parent, "state.directory": self.state.directory}

    def policy_options(self) -> catalog.PolicyOptions:
        """The part of the configuration that shapes a policy."""
        return catalog.PolicyOptions(
            reservation_depth=self.backfill.reservation_depth,
            quantum_s=self.utility.quantum_s,
            preempt_margin=self.preemption.margin,
            most_preemptions=self.preemption.max_per_pass,
            stop_threshold=self.utility.stop_threshold,
            stop_leader_threshold=self.utility.stop_leader_threshold,
            stop_least_share=self.utility.stop_min_share,
            no_report_order=self.utility.no_report_order,
            objective=self.utility.objective,
            sweep_strategy=self.utility.sweep_strategy,
            resize_restart_s=self.elastic.restart_s,
            resize_gain=self.elastic.gain,
            resize_lead_s=self.leave_within_s,
            las_limits_gpu_s=self.las.limits_gpu_s,
            starvation=self.las.starvation,
        )


def find(option: Path | None = None) -> Path | None:
    """The file to read: the option, then the environment, then /etc; None if there is none of them.

    Raises `ConfigError` where this user may not see whether there is one in /etc: the defaults may not be the site's.
    """
    if option is not None:
        return option
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return Path(named)
    try:
        DEFAULT_PATH.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{DEFAULT_PATH}: cannot be read: {error.strerror}") from error
    return DEFAULT_PATH


_LONGEST_ADDRESS = 107


def load(option: Path | None = None) -> Config:
    """Read and check the configuration. Raises `ConfigError` listing every fault at once."""
    path = find(option)
    return Config() if path is None else parse(strict_yaml.file_text(path), path)


def parse(text: str, path: Path) -> Config:
    """Check the text of a configuration file; `path` only serves the messages."""
    faults: list[str] = []
    config = strict_yaml.read(Config, strict_yaml.mapping(text, path), faults) or Config()
    if not catalog.POLICIES.knows(config.policy):
        known = strict_yaml.accepted(config.policy, catalog.POLICIES.names())
        faults.append(f"policy: unknown policy {config.policy!r}{known}")
    if not catalog.STRATEGIES.knows(strategy := config.utility.sweep_strategy):
        known = strict_yaml.accepted(strategy, catalog.STRATEGIES.names())
        faults.append(f"utility.sweep_strategy: unknown strategy {strategy!r}{known}")
    if list(config.las.limits_gpu_s) != sorted(set(config.las.limits_gpu_s)):
        faults.append(f"las.limits_gpu_s: must rise, found {list(config.las.limits_gpu_s)}")
    paths = {"progress.spool": config.progress.spool, "order.site_factor_file": config.order.site_factor_file}
    paths |= {
        "audit.file": config.audit.file,
        "state.directory": config.state.directory,
        "state.socket": config.state.socket,
    }
    for key, named in paths.items():
        if not named.is_absolute():
            faults.append(f"{key}: must be an absolute path, found '{named}'")
        elif not named.name:
            faults.append(f"{key}: must be a path below /, found '{named}'")
    if len(os.fsencode(config.state.socket)) > _LONGEST_ADDRESS:
        faults.append(f"state.socket: the path of a Unix socket has at most {_LONGEST_ADDRESS} bytes")
    if config.policy in catalog.TAKES_TURNS and config.order.scope != "partition":
        faults.append(
            f"order.scope: policy {config.policy} lets jobs of different users take turns, "
            f"so it accepts partition only, found {config.order.scope}"
        )
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return config


def example() -> str:
    """A configuration file with every key, its meaning and its default, commented out."""
    return strict_yaml.example(Config, _EXAMPLE_HEAD)


def plain(config: Config) -> dict[str, Any]:
    """The configuration as YAML and JSON know it."""
    values: dict[str, Any] = msgspec.to_builtins(config, enc_hook=str)
    return values
