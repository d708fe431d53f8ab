"""The stretches of the benchmark: Slurm alone, the daemon just started, the daemon once the queue is in its order."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.controller_load import queue, sdiag, threads
from slurm_plugin import config as configuration
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Product
from slurm_plugin.steering.controller import Controller

_NICENESS = 10
"""As in the systemd unit: here, too, the daemon shares the machine with slurmctld."""

_SETTLE_S = 4.0
_FEW = 50
_MOST_PASSES = 20
_SCHEDULER = "sched_agent"


class Arm(StrEnum):
    """What runs beside Slurm: nothing; the daemon, which finds no order; the daemon, which finds its own order."""

    WITHOUT = "without"
    FIRST = "first passes"
    STEADY = "steady"


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch. `cpu_ms` is what the main scheduler's thread computed, `host_load` the host's load at its end."""

    arm: Arm
    load: sdiag.Load
    cpu_ms: float
    host_load: float

    @property
    def cpu_mean_ms(self) -> float:
        """CPU time per main cycle; unlike its length it does not grow while others use the cores."""
        return self.cpu_ms / self.load.main.count if self.load.main.count else 0.0


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster under test, and how the daemon is configured on it."""

    product: Product
    slurm_conf: Mapping[str, str]
    slurmctld: int

    @property
    def environment(self) -> dict[str, str]:
        """For commands and the daemon."""
        return {**os.environ, **self.slurm_conf}

    @property
    def client(self) -> CliClient:
        """Slurm, to look at it and to take back what the daemon has done."""
        return CliClient(environment=self.slurm_conf)


def measure(site: Site, seconds: float, rounds: int, seed: int) -> Iterator[Stretch]:
    """All arms in turns, `rounds` times, each for `seconds`. The queue moves all the while."""
    with queue.feed(site.environment, seed):
        for _ in range(rounds):
            for arm in Arm:
                if arm is Arm.STEADY:
                    _put_in_order(site)
                time.sleep(_SETTLE_S)
                with nullcontext() if arm is Arm.WITHOUT else site.product.daemon(site.environment, _NICENESS):
                    found = _stretch(site, arm, seconds)
                yield found
            queue.forget_steering(site.client)


def _put_in_order(site: Site) -> None:
    """Pass after pass until one changes little: the state in which the daemon finds the queue on a usual day."""
    controller = Controller(site.client, configuration.load(site.product.config))
    for _ in range(_MOST_PASSES):
        if len(controller.reconcile(time.time()).changes) < _FEW:
            return
    raise TimeoutError(f"the order of the queue did not settle in {_MOST_PASSES} passes")


def _stretch(site: Site, arm: Arm, seconds: float) -> Stretch:
    subprocess.run(["sdiag", "--reset"], env=site.environment, capture_output=True, check=True)
    began_s, cpu_ms = time.monotonic(), threads.cpu_ms(site.slurmctld, _SCHEDULER)
    time.sleep(seconds)
    out = subprocess.run(["sdiag"], env=site.environment, capture_output=True, text=True, check=True).stdout
    load = sdiag.read(out, time.monotonic() - began_s)
    return Stretch(arm, load, threads.cpu_ms(site.slurmctld, _SCHEDULER) - cpu_ms, os.getloadavg()[0])
