"""Kills, stops, fills and sets clocks at random moments, and starts again what it killed."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hostile_site.site import Site
from explsched import process
from explsched.process import ProcessId
from slurm_plugin.devcluster import machine
from slurm_plugin.devcluster.cluster import DAEMON

SPOOL_MIB = 2
CLOCK = "clock"
"""A file beside what jobs save, that `job.sh` reads: by how many seconds the clocks of nodes are ahead."""

_BETWEEN_S = (4.0, 10.0)
_DOWN_S = (0.5, 6.0)
_KILLED = (DAEMON, "slurmctld", "slurmd.n2", "slurmd.n3", "slurmdbd")
_STOPPED = (DAEMON, "slurmctld", "slurmd.n4")


@dataclass(frozen=True, slots=True)
class _Program:
    """How to start a daemon of the site again."""

    argv: Sequence[str]
    environment: Mapping[str, str]


@contextmanager
def small_spool(spool: Path) -> Iterator[None]:
    """A file system of its own for the spool, which can be full without harm to the host."""
    mode = spool.stat().st_mode & 0o7777
    group = spool.stat().st_gid
    options = f"size={SPOOL_MIB}m,mode={mode:o},gid={group}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(spool)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(spool)], check=True)


class Chaos:
    """What goes wrong; `step` is called again and again, `mend` at the end. `events` tells what happened when.

    Without a seed nothing goes wrong, and without a daemon of ours only Slurm's are killed.
    """

    def __init__(self, site: Site, seed: int | None, daemon: ProcessId | None) -> None:
        self._site = site
        self._chance = random.Random(seed)  # noqa: S311  no secret
        self._pids = {one.name: one for one in (*site.cluster.daemons, *((daemon,) if daemon else ()))}
        self._programs = {name: _program(one.pid) for name, one in self._pids.items()}
        self._next_s = time.time() + self._chance.uniform(*_BETWEEN_S) if seed is not None else math.inf
        self._mend: Callable[[], None] | None = None
        self._mend_s = 0.0
        self.events: tuple[str, ...] = ()

    def step(self) -> None:
        """Do what is due."""
        self.resume_nodes()
        now_s = time.time()
        if self._mend is not None and now_s >= self._mend_s:
            self._mend()
            self._mend = None
            self._next_s = now_s + self._chance.uniform(*_BETWEEN_S)
        elif self._mend is None and now_s >= self._next_s:
            self._mend_s = now_s + self._chance.uniform(*_DOWN_S)
            self._mend = self._chance.choice((self._kill, self._kill, self._stop, self._fill, self._step_clock))()

    def mend(self) -> None:
        """Nothing is broken any more."""
        if self._mend is not None:
            self._mend()
            self._mend = None

    def resume_nodes(self) -> None:
        """Resume, as an admin would, the nodes that slurmctld drained because it had forgotten the numbers of jobs.

        It saves its state every five seconds: after a SIGKILL it may give a number again that a node still runs.
        """
        if not self.events:
            return
        listed = self._site.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N|%t|%E")
        for node in drained_for_numbers(listed):
            self._site.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
            self._tell(f"resumed {node}")

    def restart_daemon(self) -> None:
        """End the daemon, and start it again."""
        self.end_daemon()
        self._start(DAEMON)

    def end_daemon(self) -> None:
        """End the daemon, whichever it is now."""
        machine.stop([self._pids[DAEMON]])

    def _kill(self) -> Callable[[], None]:
        name = self._chance.choice([name for name in _KILLED if name in self._pids])
        process.send(self._pids[name], signal.SIGKILL)
        self._tell(f"SIGKILL {name}")
        return lambda: self._start(name)

    def _start(self, name: str) -> None:
        process.collect_children()
        program = self._programs[name]
        log = self._site.cluster.layout.logs / f"{name}.out" if name != DAEMON else self._site.product.log
        run = self._site.cluster.layout.root / "run"
        self._pids[name] = machine.start(name, program.argv, log, run, program.environment)
        self._tell(f"started {name}")

    def _stop(self) -> Callable[[], None]:
        name = self._chance.choice([name for name in _STOPPED if name in self._pids])
        process.send(self._pids[name], signal.SIGSTOP)
        self._tell(f"SIGSTOP {name}")
        return lambda: process.send(self._pids[name], signal.SIGCONT)

    def _fill(self) -> Callable[[], None]:
        filler = self._site.product.spool / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 12))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        self._tell("spool full")
        return filler.unlink

    def _step_clock(self) -> Callable[[], None]:
        """The clocks of all nodes are wrong, as far as jobs read them. That of this machine is others' as well."""
        ahead_s = self._chance.choice((-86_400, -90, 90, 86_400))
        clock = self._site.jobs / CLOCK
        clock.write_text(f"{ahead_s}\n")
        clock.chmod(0o644)
        self._tell(f"clocks of nodes {ahead_s:+d} s")
        return clock.unlink

    def _tell(self, what: str) -> None:
        self.events = (*self.events, f"{time.time():.1f} {what}")


def drained_for_numbers(listing: str) -> tuple[str, ...]:
    """The nodes (`%N|%t|%E` of sinfo) that were drained because a job's number was already in use there."""
    rows = (line.split("|") for line in listing.splitlines())
    return tuple(name for name, state, why in rows if state.startswith("dr") and why == "Duplicate jobid")


def _program(pid: int) -> _Program:
    here = Path("/proc") / str(pid)
    argv = [os.fsdecode(word) for word in (here / "cmdline").read_bytes().split(b"\0")[:-1]]
    pairs = (entry.partition("=") for entry in os.fsdecode((here / "environ").read_bytes()).split("\0") if entry)
    return _Program(argv, {key: value for key, _, value in pairs})
