"""The state of the cluster that commands show: what the daemon has published, or else a look of their own at Slurm.

What is needed to ask Slurm loads at once; what is needed to understand the answer (numpy, the policies) loads while
Slurm works on it. Where the daemon publishes, neither is needed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from explsched.errors import ExplschedError
from slurm_plugin import config as configuration
from slurm_plugin import sighting
from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import Config
from slurm_plugin.state.published import State, ask, read

if TYPE_CHECKING:
    from slurm_plugin.client.changes import Change
    from slurm_plugin.client.records import SlurmJob
    from slurm_plugin.state.view import View

_JOB_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_BACKOFFS = 3
"""Time between two passes while slurmctld is busy, in longest intervals: those before, each twice as long, included."""
Wanted = Callable[["View", Config], Sequence["Change"]]


def _nothing(_view: View, _config: Config) -> Sequence[Change]:
    return ()


class NoJobError(ExplschedError):
    """There is nothing to explain: the job is over, or was never there."""


def job_number(text: str) -> int:
    """A parameter's type: a job's number, or a part of a job as squeue has it, whose number Slurm tells.

    Parts are tasks of arrays, `4711_3`, and components of heterogeneous jobs, `4711+1`.
    Raises `click.BadParameter`, and `SlurmError` for a part that Slurm does not know.
    """
    name = text.strip()
    if _JOB_ID.fullmatch(name) is None:
        parts = "tasks of arrays such as 4711_3 and components of heterogeneous jobs such as 4711+1"
        raise click.BadParameter(f"{name!r}: accepted are job ids such as 4711, {parts}")
    return int(name) if name.isdecimal() else CliClient().part(name)


fresh_option = click.option("--fresh", is_flag=True, help="Ask Slurm now, whatever the daemon has published.")


def current(config_path: Path | None, *, fresh: bool, wanted: Wanted = _nothing) -> State:
    """What the daemon published; where that is stale or absent, or with `fresh`, what Slurm and the jobs tell now.

    Then `wanted` says which changes the state names. Nothing is changed. Raises `ConfigError`, `SlurmError` or
    `PolicyError`.
    """
    config = configuration.load(config_path)
    if not fresh and (state := published(config)) is not None:
        return state
    view = look(config_path)
    from slurm_plugin.state.publish import state_of  # loads with the view

    return state_of(view, wanted(view, config), (), source="slurm")


def published(config: Config) -> State | None:
    """What the daemon published; None where that is stale or absent."""
    found = read(config.state.directory) or ask(config.state.socket)
    return found if found is not None and _is_newest(found, config, time.time()) else None


def _is_newest(found: State, config: Config, now_s: float) -> bool:
    """Whether a running daemon would not have replaced it yet.

    One that lives waits for longer while slurmctld is busy, which commands that ask Slurm instead would keep busy.
    """
    if not found.is_stale(now_s):
        return True
    seen = sighting.last_heartbeat(config.progress.spool)
    longest_s = _BACKOFFS * config.backpressure.max_interval_s
    return seen is not None and seen.is_alive(now_s) and found.age_s(now_s) <= longest_s


def tell_source(state: State, config_path: Path | None) -> None:
    """One line on standard error: how old the state is, or why Slurm was asked, and whether a daemon runs."""
    config, now_s = configuration.load(config_path), time.time()
    if state.source == "daemon":
        click.echo(f"sexplsched: as the daemon saw it {state.age_s(now_s):.0f} s ago", err=True)
    if notice := sighting.notice(config.progress.spool, now_s):
        click.echo(f"sexplsched: {notice}", err=True)


def look(config_path: Path | None) -> View:
    """Look at the cluster once, changing nothing. Raises `ConfigError`, `SlurmError` or `PolicyError`."""
    config = configuration.load(config_path)
    # A single look does not pay for pyslurm's start; the commands answer in milliseconds.
    client = CliClient(config.slurm.timeout_s)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # starting one per core takes numpy longer than the work
    with ThreadPoolExecutor(1) as reader:
        records = reader.submit(client.look)
        from slurm_plugin.state.view import View

        return View.of(config, records.result(), time.time())


def remembered(config: Config, prefix: str) -> tuple[SlurmJob, ...]:
    """One's own jobs as `SlurmClient.tagged_jobs`: also those that Slurm still remembers after their end."""
    return CliClient(config.slurm.timeout_s).tagged_jobs(prefix)
