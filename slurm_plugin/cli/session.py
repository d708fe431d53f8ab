"""What the commands share: options, and one look at the cluster with the plan the daemon would make of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from sched_policy import catalog
from sched_policy.plan import Plan, Reservation, Score
from sched_policy.utility import Utility, estimate
from sched_policy.validate import checked_plan
from slurm_plugin import config as configuration
from slurm_plugin.cli.options import json_option as json_option
from slurm_plugin.client.cli import CliClient
from slurm_plugin.observe import Observation, observe
from slurm_plugin.progress import ProgressSpool

config_option = click.option(
    "-f", "--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.", show_envvar=True
)


@dataclass(frozen=True, slots=True)
class View:
    """One look: what Slurm and the jobs tell, and what the policy makes of it."""

    config: configuration.Config
    seen: Observation
    plan: Plan
    scores: Mapping[int, Score]
    utilities: Mapping[int, Utility]
    promises: Mapping[int, Reservation]


def look(config_path: Path | None) -> View:
    """Look at the cluster once, changing nothing. Raises `ConfigError` or `SlurmError`."""
    config = configuration.load(config_path)
    # A single look does not pay for pyslurm's start; the commands answer in milliseconds.
    client = CliClient(config.slurm.timeout_s)
    spool = ProgressSpool(config.progress.spool)
    seen = observe(client, spool, time.time(), config.slurm.partitions, churn=config.churn())
    plan = checked_plan(catalog.build(config.policy, config.policy_options()), seen.snapshot)
    return View(
        config,
        seen,
        plan,
        {score.job_id: score for score in plan.scores},
        estimate(seen.snapshot.jobs, config.utility.quantum_s),
        {promise.job_id: promise for promise in plan.reservations},
    )


def clock(time_s: float | None) -> str:
    """A point in time as Slurm prints it, local; N/A for None."""
    if time_s is None or time_s == float("inf"):
        return "N/A"
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
