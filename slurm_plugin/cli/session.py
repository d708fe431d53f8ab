"""One look at the cluster, for commands that answer while a person waits.

What is needed to ask Slurm loads at once; what is needed to understand the answer (numpy, the policies) loads while
Slurm works on it. So this module, and those of the commands that look, import the second kind only for types.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_plugin import config as configuration
from slurm_plugin.client.cli import CliClient

if TYPE_CHECKING:
    from slurm_plugin.cli.view import View
    from slurm_plugin.client.records import SlurmJob
    from slurm_plugin.config import Config


def look(config_path: Path | None) -> View:
    """Look at the cluster once, changing nothing. Raises `ConfigError`, `SlurmError` or `PolicyError`."""
    config = configuration.load(config_path)
    # A single look does not pay for pyslurm's start; the commands answer in milliseconds.
    client = CliClient(config.slurm.timeout_s)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # starting one per core takes numpy longer than the work
    with ThreadPoolExecutor(1) as reader:
        records = reader.submit(client.look)
        from slurm_plugin.cli.view import View

        return View.of(config, records.result(), time.time())


def remembered(config: Config, prefix: str) -> tuple[SlurmJob, ...]:
    """One's own jobs whose comment begins with `prefix`, those that Slurm still remembers after their end included."""
    return CliClient(config.slurm.timeout_s).tagged_jobs(prefix)


def clock(time_s: float | None) -> str:
    """A point in time as Slurm prints it, local; N/A for None."""
    if time_s is None or time_s == float("inf"):
        return "N/A"
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
