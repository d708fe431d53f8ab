"""`python -m benchmarks.controller_load`: slurmctld with a long queue, without us and with us, in turns.

Both arms run on the same private cluster, whose queue moves: jobs end and new ones come. Each stretch begins with
`sdiag --reset`; one with us begins with the start of the daemon, so the first labelling of the whole queue is in it.
After it what the daemon has written is taken back.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.controller_load import backoff, queue, sdiag
from benchmarks.sweep_demo.run import daemon
from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient

_SEED = 1
_SETTLE_S = 5.0
_NICENESS = 10
"""As in the systemd unit: here, too, the daemon shares the machine with slurmctld."""


@click.command()
@click.option("--jobs", default=5000, show_default=True, type=click.IntRange(1, 20000), help="Waiting jobs.")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(10), help="Length of a stretch.")
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1), help="Stretches of each arm.")
@click.option("--interval", "interval_s", default=15.0, show_default=True, help="Of the daemon: `interval_s`.")
@click.option("--policy", default="explsched", show_default=True, help="Of the daemon.")
@click.option("--leases", default=None, type=click.IntRange(0), help="Of the daemon: `backfill.reservation_depth`.")
@click.option("--storm", "storm_s", default=40.0, show_default=True, help="Seconds of each part of the back-off test.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures alone.")
def main(
    jobs: int,
    seconds: float,
    rounds: int,
    interval_s: float,
    policy: str,
    leases: int | None,
    storm_s: float,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Measure what steering costs slurmctld, and whether the daemon backs off when slurmctld is busy."""
    settings = {
        "policy": policy,
        "interval_s": interval_s,
        "slurm": {"client": "cli"},
        "backfill": {"reservation_depth": leases},
    }
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        directory = Path(scratch)
        directory.chmod(0o755)
        (directory / "spool").mkdir()
        cluster = devcluster.up(queue.spec(jobs), directory / "c")
        environment = {**os.environ, **cluster.env()}
        try:
            queue.fill(jobs, environment, _SEED)
            client = CliClient(environment=cluster.env())
            arms: dict[str, list[sdiag.Load]] = {"without": [], "with": []}
            for number in range(rounds):
                for arm, loads in arms.items():
                    time.sleep(_SETTLE_S)
                    steering = daemon(settings, directory, environment, _NICENESS) if arm == "with" else nullcontext()
                    with queue.feed(environment, _SEED + 1 + number):
                        with steering:
                            loads.append(_stretch(environment, seconds))
                        queue.forget_steering(client)
            backed_off = backoff.measure(directory, environment, storm_s) if storm_s > 0 else None
            figures = _figures(client.load().jobs_pending, arms)
        finally:
            devcluster.down(directory / "c")
    if backed_off is not None:
        figures["back_off"] = asdict(backed_off)
    print(json.dumps(figures, indent=None if as_json else 1))


def _stretch(environment: Mapping[str, str], seconds: float) -> sdiag.Load:
    subprocess.run(["sdiag", "--reset"], env=environment, capture_output=True, check=True)
    began_s = time.monotonic()
    time.sleep(seconds)
    out = subprocess.run(["sdiag"], env=environment, capture_output=True, text=True, check=True).stdout
    return sdiag.read(out, time.monotonic() - began_s)


def _figures(waiting: int, arms: Mapping[str, list[sdiag.Load]]) -> dict[str, object]:
    alone, steered = (sdiag.merged(loads) for loads in arms.values())
    types = sorted({*alone.requests, *steered.requests})
    added = {name: round(steered.per_minute(name) - alone.per_minute(name), 1) for name in types}
    return {
        "jobs_waiting": waiting,
        "seconds_per_arm": round(alone.seconds),
        "without": _arm(alone),
        "with": _arm(steered),
        "main_mean_ratio": _ratio(steered.main.mean_ms, alone.main.mean_ms),
        "main_mean_ratio_by_round": [
            _ratio(b.main.mean_ms, a.main.mean_ms) for a, b in zip(*arms.values(), strict=True)
        ],
        "main_time_ratio": _ratio(steered.main.total_ms, alone.main.total_ms),
        "backfill_mean_ratio": _ratio(steered.backfill.mean_ms, alone.backfill.mean_ms),
        "requests_added_per_minute": {name: count for name, count in added.items() if abs(count) >= 1},
    }


def _arm(load: sdiag.Load) -> dict[str, object]:
    return {
        "main_mean_ms": round(load.main.mean_ms, 2),
        "main_max_ms": round(load.main.max_ms, 2),
        "main_mean_depth": round(load.main.mean_depth),
        "main_cycles_per_minute": round(60 * load.main.count / load.seconds, 1),
        "backfill_mean_ms": round(load.backfill.mean_ms, 2),
        "backfill_max_ms": round(load.backfill.max_ms, 2),
        "backfill_cycles": load.backfill.count,
        "backfill_mean_depth": round(load.backfill.mean_depth),
        "requests_per_minute": round(60 * sum(load.requests.values()) / load.seconds, 1),
        "request_ms_per_minute": round(60 * load.request_ms / load.seconds, 1),
    }


def _ratio(steered: float, alone: float) -> float | None:
    return round(steered / alone, 3) if alone else None


if __name__ == "__main__":
    main()
