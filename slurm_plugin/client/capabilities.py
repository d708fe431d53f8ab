"""What the Slurm at hand can do: one table, filled from its release and its configuration.

Everything that differs between Slurm 22.05 and 26.05 and that explsched acts on or tells an admin about is a row here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Self

from msgspec import Struct

from slurm_plugin.client.notation import duration_s, number
from slurm_plugin.client.records import REQUEUE_DELAY_S


class SlurmVersion(Struct, frozen=True, order=True):
    """A Slurm release such as 22.5.8 (Slurm writes 22.05.8)."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """The first release that a text names, as `slurm-wlm 22.05.8`. Raises `ValueError` if it names none."""
        match = re.search(r"\b(\d\d)\.(\d\d)(?:\.(\d+))?", text)
        if match is None:
            raise ValueError(f"{text.strip()!r} holds no version")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    @property
    def release(self) -> str:
        """Without the patch level, as Slurm writes it: 22.05. Programs built for one serve all its patch levels."""
        return f"{self.major}.{self.minor:02d}"

    def __str__(self) -> str:
        return f"{self.release}.{self.patch}"


OLDEST = SlurmVersion(22, 5)
"""The oldest release that the tests run on."""


class Capability(Struct, frozen=True):
    """One thing that not every Slurm has.

    `since` is the first release that has it. `key` and `word` name the slurm.conf setting that switches it on; without
    a key it is always on. `use` says what it changes for us.
    """

    name: str
    use: str
    since: SlurmVersion = OLDEST
    key: str = ""
    word: str = ""

    def is_in(self, version: SlurmVersion) -> bool:
        """Whether this release has it at all."""
        return (version.major, version.minor) >= (self.since.major, self.since.minor)


SITE_FACTOR = Capability(
    "site factors",
    "the order of jobs reaches Slurm; without it nothing does",
    key="PriorityType",
    word="priority/multifactor",
)
BACKFILL = Capability(
    "backfill", "Slurm fills the gaps before planned starts", key="SchedulerType", word="sched/backfill"
)
OPERATORS = Capability(
    "operators",
    "the daemon's own user may steer; slurmdbd keeps who is AdminLevel=Admin",
    key="AccountingStorageType",
    word="slurmdbd",
)
SHARDS = Capability("shards", "jobs may share a GPU (gres/shard)", key="GresTypes", word="shard")
GPU_ACCOUNTING = Capability(
    "GPU accounting", "sacct reports GPUs, for replays of your history", key="AccountingStorageTRES", word="gres/gpu"
)
LUA_SUBMIT = Capability(
    "job_submit/lua", "the daemon learns of the options of plain sbatch", key="JobSubmitPlugins", word="lua"
)
RATE_LIMIT = Capability(
    "rate limit",
    "slurmctld limits requests per user, and the daemon writes no more in a pass than it accepts",
    SlurmVersion(23, 2),
    "SlurmctldParameters",
    "rl_enable",
)
GPU_RESERVATIONS = Capability(
    "GPU reservations",
    "reservations by GPU count; leases do without them, they are for whole nodes",
    SlurmVersion(23, 11),
)
CGROUPS_OFF = Capability(
    "CgroupPlugin=disabled", "private clusters leave no cgroups on their host", SlurmVersion(23, 11)
)
SEVERAL_SLURMD = Capability(
    "several slurmd on a host", "srun across the nodes of a private cluster", key="MULTIPLE_SLURMD", word="yes"
)

EXCLUSIVE_FIELD = Capability(
    "exclusive jobs in squeue",
    "squeue shows --exclusive in the field Exclusive, no longer in OverSubscribe",
    SlurmVersion(26, 5),
)
"""Not in the table, for it changes nothing but what we ask of squeue."""

NEEDED = (SITE_FACTOR, BACKFILL)
"""Without these explsched does nothing good."""

TABLE = (
    *NEEDED,
    OPERATORS,
    SHARDS,
    GPU_ACCOUNTING,
    LUA_SUBMIT,
    RATE_LIMIT,
    GPU_RESERVATIONS,
    CGROUPS_OFF,
    SEVERAL_SLURMD,
)


_WEIGHTS = tuple(f"PriorityWeight{factor}" for factor in ("Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS"))

_FLAT = frozenset({"", "(null)", "none", "default", "flat"})
"""TopologyPlugin of clusters whose nodes are all equally near each other. Some releases print these without a path."""


class RateLimit(Struct, frozen=True):
    """slurmctld's token bucket for each user: requests let through at once, and per second in the long run."""

    bucket: int
    per_s: float

    def requests(self, interval_s: float) -> int:
        """How many requests every `interval_s` seconds never have to wait."""
        return int(min(self.bucket, self.per_s * interval_s))


class Capabilities(Struct, frozen=True):
    """The table for one Slurm. `settings` are those of `scontrol show config`."""

    version: SlurmVersion
    settings: Mapping[str, str]

    def has(self, capability: Capability) -> bool:
        """Whether this Slurm has it, and it is switched on."""
        # The whole word: JobSubmitPlugins=evaluate is no lua, gres/gpumem no gres/gpu.
        word = rf"(?<!\w){re.escape(capability.word)}(?!\w)"
        is_on = not capability.key or re.search(word, self._setting(capability), re.IGNORECASE) is not None
        return capability.is_in(self.version) and is_on

    def absence(self, capability: Capability) -> str:
        """Why it is not there; empty if it is."""
        if not capability.is_in(self.version):
            return f"Slurm {capability.since.release} brings it"
        if self.has(capability):
            return ""
        return f"{capability.key} is {self._setting(capability)}, without {capability.word}"

    def rate_limit(self) -> RateLimit | None:
        """The limit on our requests, if slurmctld has one. Defaults: slurm.conf(5), SlurmctldParameters."""
        if not self.has(RATE_LIMIT):
            return None
        key = RATE_LIMIT.key
        per_s = self._number(key, "rl_refill_rate", 2) / max(1, self._number(key, "rl_refill_period", 1))
        return RateLimit(self._number(key, "rl_bucket_size", 30), per_s)

    @property
    def backfill_yields_after_s(self) -> float:
        """How long a backfill cycle works until it yields its locks for a while. Default: slurm.conf(5)."""
        return self._number("SchedulerParameters", "bf_yield_interval", 2_000_000) / 1e6

    @property
    def backfill_interval_s(self) -> float:
        """How long after a backfill cycle the next one begins. Default: slurm.conf(5)."""
        return float(self._number("SchedulerParameters", "bf_interval", 30))

    @property
    def priority_period_s(self) -> float:
        """How often the priorities of all waiting jobs are computed anew; infinity where that is not told."""
        try:
            return duration_s(self.settings.get("PriorityCalcPeriod", "")) or math.inf
        except ValueError:
            return math.inf

    @property
    def defers(self) -> bool:
        """Whether batch jobs are started some time after they were submitted, not at once. See slurm.conf(5).

        From 23.11 on `defer_batch` lets only allocations of salloc and srun start at once.
        """
        return not {"defer", "defer_batch"}.isdisjoint(self._scheduler_parameters)

    @property
    def starts_soonest_s(self) -> float:
        """How soon after its submission Slurm may start a job, where it does not while it is submitted: by either look.

        `batch_sched_delay` and `bf_interval`. The main scheduler also looks every `sched_interval`, a minute.
        """
        return min(self._number("SchedulerParameters", "batch_sched_delay", 3), self.backfill_interval_s)

    @property
    def resizes_running_jobs(self) -> bool:
        """Whether a list of nodes that reaches a job after its start is taken for a new size. See slurm.conf(5)."""
        return "disable_job_shrink" not in self._scheduler_parameters

    @property
    def lets_users_top(self) -> bool:
        """Whether `scontrol top`, which gives a job a negative nice, is open to users. See slurm.conf(5)."""
        return "enable_user_top" in self._scheduler_parameters

    @property
    def _scheduler_parameters(self) -> list[str]:
        return self.settings.get("SchedulerParameters", "").split(",")

    @property
    def priority_weights(self) -> dict[str, int]:
        """What Slurm's own factors count in a priority at most, by their names in slurm.conf; without those of 0."""
        told = {key: number(self.settings.get(key, "")) for key in _WEIGHTS}
        return {key: weight for key, weight in told.items() if weight}

    @property
    def site_factor_plugin(self) -> str:
        """The plugin that sets site factors by itself, empty for none."""
        name = self.settings.get("PrioritySiteFactorPlugin", "")
        return "" if name in ("(null)", "site_factor/none") else name

    @property
    def private_data(self) -> tuple[str, ...]:
        """What slurm.conf hides from users who are not operators; `jobs` where that is not known."""
        return tuple(self.settings.get("PrivateData", "jobs").replace(" ", "").lower().split(","))

    @property
    def booted(self) -> str:
        """When this slurmctld was started, as it prints it. From 23.11 on `scontrol reconfigure` starts it anew."""
        return self.settings.get("BOOT_TIME", "")

    @property
    def cluster(self) -> str:
        """What tells this cluster from others: its name, and where its slurmctld listens."""
        keys = ("ClusterName", "SlurmctldHost[0]", "SlurmctldPort")
        return "/".join(self.settings.get(key, "?") for key in keys)

    @property
    def cluster_name(self) -> str:
        """ClusterName alone, which stays when slurmctld moves."""
        return self.settings.get("ClusterName", "?")

    def __iter__(self) -> Iterator[tuple[Capability, bool]]:
        return ((capability, self.has(capability)) for capability in TABLE)

    def _number(self, key: str, name: str, default: int) -> int:
        """A number among the words of a setting."""
        match = re.search(rf"\b{name}=(\d{{1,18}})\b", self.settings.get(key, ""))
        return int(match[1]) if match else default

    def _setting(self, capability: Capability) -> str:
        return self.settings.get(capability.key, "(null)")


def respects_topology(settings: Mapping[str, str]) -> bool:
    """Whether slurm.conf lets Slurm choose nodes of a gang by where they are (switch tree, blocks, torus)."""
    return settings.get("TopologyPlugin", "").removeprefix("topology/") not in _FLAT


def has_database(settings: Mapping[str, str]) -> bool:
    """Whether slurmdbd keeps a record of each job, as far as the settings are known."""
    is_there = OPERATORS.word in settings.get(OPERATORS.key, OPERATORS.word)
    return is_there and "nojobs" not in settings.get("AccountingStorageEnforce", "").split(",")


def enforces_limits(settings: Mapping[str, str]) -> bool:
    """Whether Slurm keeps to the limits of associations and QOS."""
    return not {"limits", "safe", "all"}.isdisjoint(settings.get("AccountingStorageEnforce", "").split(","))


def preempts_by_qos(settings: Mapping[str, str]) -> bool:
    """Whether a waiting job comes before those of the QOS that its own may preempt, whatever tiers and priorities."""
    return settings.get("PreemptType") == "preempt/qos"


def requeue_delay_s(settings: Mapping[str, str]) -> float:
    """How long slurmctld keeps a requeued job from starting, by `batch_requeue_fini` and `cred_p_init` of its source.

    `requeue_delay` came with 25.11; else it is the life of a credential, two minutes also where that is too short.
    """
    if told := re.search(r"\brequeue_delay=(\d{1,9})", settings.get("SchedulerParameters", "")):
        return float(told[1])
    life = re.search(r"cred_expire=(\d{1,9})", settings.get("AuthInfo", ""))
    return float(life[1]) if life and int(life[1]) >= _SHORTEST_LIFE_S else REQUEUE_DELAY_S


_SHORTEST_LIFE_S = 5


def settings(text: str) -> dict[str, str]:
    """Key -> value of `scontrol show config`, whose lines read `Key = value`."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}
