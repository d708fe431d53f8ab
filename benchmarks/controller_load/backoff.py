"""Whether the daemon leaves slurmctld alone when others keep it busy."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.devcluster import Product

_INTERVAL_S = 4.0
_WIDEST_S = 32.0
_BUSY_THREADS = 4
_CLIENTS = 16


@dataclass(frozen=True, slots=True)
class BackOff:
    """Passes per minute in quiet, under load and afterwards, and the intervals the daemon chose under load."""

    quiet_per_min: float
    busy_per_min: float
    after_per_min: float
    busy_intervals_s: tuple[float, ...]


def measure(directory: Path, environment: Mapping[str, str], seconds: float) -> BackOff:
    """Three stretches of `seconds`; in the middle one 16 clients ask for the queue without pause."""
    settings = {
        "interval_s": _INTERVAL_S,
        "slurm": {"client": "cli"},
        "backpressure": {"server_threads": _BUSY_THREADS, "max_interval_s": _WIDEST_S},
    }
    product = Product(directory / "back_off")
    product.install(settings)
    log = product.log
    with product.daemon(environment):
        while not _passes(log):
            time.sleep(0.5)  # the first pass labels the queue
        quiet = _stretch(log, seconds)
        with _storm(environment):
            before = len(_busy_intervals(log))
            busy = _stretch(log, seconds)
            intervals = _busy_intervals(log)[before:]
        time.sleep(intervals[-1] if intervals else 0)  # it is asleep that long before it sees that the storm is over
        after = _stretch(log, seconds)
    minutes = seconds / 60
    return BackOff(quiet / minutes, busy / minutes, after / minutes, tuple(intervals))


def _stretch(log: Path, seconds: float) -> int:
    """Passes made in the next `seconds`."""
    before = _passes(log)
    time.sleep(seconds)
    return _passes(log) - before


@contextmanager
def _storm(environment: Mapping[str, str]) -> Iterator[None]:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            subprocess.run(["squeue", "--noheader"], env=environment, capture_output=True, check=False)

    threads = [threading.Thread(target=ask) for _ in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _passes(log: Path) -> int:
    return sum(" explsched.controller pass " in line for line in log.read_text().splitlines())


def _busy_intervals(log: Path) -> list[float]:
    lines = [line for line in log.read_text().splitlines() if "slurmctld is busy" in line]
    return [float(line.partition("interval_s=")[2].split()[0]) for line in lines]
