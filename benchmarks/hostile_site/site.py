"""The site: accounts with shares, users in pairs, two partitions, a QOS and a reservation on a private cluster."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slurm_plugin import devcluster

NODES, GPUS_PER_NODE = 4, 8
CYCLE_S = 3
"""Seconds between two cycles of backfill."""

SPEC = devcluster.ClusterSpec(
    NODES,
    GPUS_PER_NODE,
    shards_per_node=0,
    cpus_per_node=64,
    accounting=True,
    extra=(
        ("SchedulerParameters", f"bf_interval={CYCLE_S},bf_resolution=60,bf_continue,sched_interval=2"),
        ("PriorityCalcPeriod", "1"),
        ("PriorityMaxAge", "0-00:10:00"),
        ("PriorityWeightAge", "10000"),
        ("PriorityWeightFairshare", "4000"),
        ("PriorityWeightQOS", "5000"),
        ("PriorityWeightPartition", "2000"),
        ("MinJobAge", "7200"),
        ("KillWait", "2"),
        ("PartitionName", "long Nodes=n[3-4] MaxTime=INFINITE PriorityJobFactor=1000 State=UP"),
        ("PartitionName", "urgent Nodes=n4 MaxTime=INFINITE PriorityTier=10 State=UP"),
    ),
)

SHARES = {"vision": 10, "speech": 40, "bio": 20}


class Lie(StrEnum):
    """What a user does to get more than a share."""

    FAKED = "faked"
    """Reports a steep curve that no training has."""
    CONSTANT = "constant"
    """Reports the same value again and again."""
    MISSING = "missing"
    """Claims to be a training of a sweep, and reports nothing."""
    PERFECT = "perfect"
    """Reports a loss of zero and the last step from the start."""
    SWEEPS = "sweeps"
    """Each job is a new sweep of its own; the comment is changed while the job waits."""
    PARKED = "parked"
    """Keeps long jobs in the queue that are never meant to run, so that others of the user could take their places."""


@dataclass(frozen=True, slots=True)
class SiteUser:
    """A user of the site. The two of a pair submit the same jobs; one is honest, the other tells `lie_of_pair`."""

    name: str
    account: str
    pair: int
    lie_of_pair: Lie
    is_liar: bool

    @property
    def lie(self) -> Lie | None:
        """What the user does; None for the honest one."""
        return self.lie_of_pair if self.is_liar else None

    @property
    def uid(self) -> int:
        """The uid, which every Debian has."""
        return pwd.getpwnam(self.name).pw_uid


_NAMES = ("games", "man", "lp", "mail", "news", "uucp", "proxy", "www-data", "backup", "list", "irc", "sys")


def _pairs(lies: Sequence[Lie]) -> tuple[SiteUser, ...]:
    accounts = tuple(SHARES)
    return tuple(
        SiteUser(_NAMES[2 * pair + is_liar], accounts[pair % len(accounts)], pair, lie, bool(is_liar))
        for pair, lie in enumerate(lies)
        for is_liar in (0, 1)
    )


USERS = _pairs(tuple(Lie))


def all_telling(lie: Lie) -> tuple[SiteUser, ...]:
    """The same users, but the liar of each pair tells the same lie: six samples of it in each run instead of one."""
    return _pairs([lie] * len(Lie))


@dataclass(frozen=True, slots=True)
class Site:
    """The running site: its cluster, and where the jobs' files are."""

    cluster: devcluster.Cluster
    product: devcluster.Product
    jobs: Path

    @property
    def environment(self) -> dict[str, str]:
        """Of commands and jobs."""
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))},
            **self.cluster.env(),
            **self.product.env(),
            "SLURM_TIME_FORMAT": "%s",
        }

    def run(self, *argv: str) -> str:
        """What a command of root's prints. Raises `CalledProcessError`."""
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=True).stdout

    def ask(self, *argv: str) -> str:
        """The same, but nothing is printed by a command that fails, as all of Slurm's do while slurmctld is down."""
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False).stdout

    def run_as(self, user: SiteUser, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command of a user's, who has that uid, and no group but the uid's own."""
        uid = user.uid
        return subprocess.run(
            argv,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            user=uid,
            group=pwd.getpwuid(uid).pw_gid,
            extra_groups=[],
            cwd="/",
        )


def start(directory: Path, settings: Mapping[str, object]) -> Site:
    """Bring the site up: the cluster, its accounts and users, the product without a daemon."""
    product = devcluster.Product(directory / "explsched")
    product.install(settings)
    cluster = devcluster.up(SPEC, directory / "c")
    jobs = directory / "jobs"
    jobs.mkdir()
    jobs.chmod(0o1777)
    site = Site(cluster, product, jobs)
    for account, shares in SHARES.items():
        site.run("sacctmgr", "--immediate", "add", "account", account, f"fairshare={shares}")
    site.run("sacctmgr", "--immediate", "add", "qos", "high", "priority=100")
    for user in USERS:
        # Accounts have shares, and all users of one have the same: with shares of their own the two of a pair would
        # take turns by the minute (PriorityCalcPeriod), and chance would decide more than lies can.
        rights = ("fairshare=parent", "qos=normal,high", "defaultqos=normal")
        site.run("sacctmgr", "--immediate", "add", "user", user.name, f"account={user.account}", *rights)
    return site


def reserve(site: Site, from_now_s: float, minutes: int) -> None:
    """Maintenance of the first node."""
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + from_now_s))
    site.run(
        "scontrol", "create", "reservation", "ReservationName=service", f"StartTime={begin}", f"Duration={minutes}",
        "Nodes=n1", "Users=root", "Flags=MAINT,IGNORE_JOBS",
    )  # fmt: skip
