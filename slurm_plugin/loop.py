"""The reconcile loop, which runs until it is told to stop.

SIGHUP reloads the configuration (a bad file leaves the running one in force), SIGUSR2 reopens the log, SIGTERM and
SIGINT stop after the current pass, and leases and pins are removed at once. Without the daemon Slurm continues with
the last order, and leases expire.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from explsched import log
from explsched.errors import ExplschedError, PolicyError, SlurmError
from slurm_plugin import config as configuration
from slurm_plugin import sighting
from slurm_plugin.client.batch import shown
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.client.protocol import choose
from slurm_plugin.client.records import ControllerLoad
from slurm_plugin.config import Config
from slurm_plugin.instance.claim import Claim
from slurm_plugin.instance.heartbeat import PATIENCE_S
from slurm_plugin.instance.holder import AnotherDaemonError
from slurm_plugin.instance.only_one import OnlyOne
from slurm_plugin.state import serving
from slurm_plugin.state.publish import Publisher, counted, private
from slurm_plugin.state.published import Totals
from slurm_plugin.state.view import View
from slurm_plugin.steering.backpressure import backoff
from slurm_plugin.steering.controller import Controller, Pass


def notify(*assignments: str) -> None:
    """Send assignments such as `READY=1` to the socket that systemd named. A lost message must not stop the service."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    name = "\0" + address[1:] if address.startswith("@") else address  # @: Linux's abstract names
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.sendto("\n".join(assignments).encode(), name)
        except OSError:  # systemd then reports a timeout of the start
            return


_LOG = logging.getLogger("explsched.daemon")
WATCHDOG_S = 60.0
_STEP_S = 5.0
"""A clock that has moved by so much is worth a word."""

_LOOK_S = 0.25
"""So often it is looked whether a job that was asked to make room has saved its checkpoint."""

_SOONEST = 0.25
"""Passes are at least this share of their interval apart."""

_REQUESTS = (signal.SIGHUP, signal.SIGUSR2)
"""Blocked while the process starts."""

_GIVEN_UP = "pass given up, will try again"

_BEATS_MISSED = 2
_COMMANDS_OF_A_PASS = 4
"""A daemon is taken for dead when it has missed so many passes, and so many of Slurm's commands may have hung."""


class Daemon:
    """Runs passes until a signal stops it."""

    def __init__(self, config_path: Path | None, log_level: str, log_file: str | None) -> None:
        self._config_path = config_path
        self._log_level = log_level
        self._log_file = log_file
        self._config = configuration.load(config_path)
        client = choose(self._config.slurm.client, self._config.slurm.timeout_s)
        self._controller = Controller(client, self._config)
        self._only_one = OnlyOne()
        self._unclaimed: tuple[Claim, ...] = ()
        self._cluster_name = ""
        self._publisher = Publisher(self._config.state.directory)
        self._readers = serving.ServerProcess(self._config.state.directory, self._config.state.socket)
        self._totals = Totals()
        self._fault = log.LastingFault()
        self._wake = threading.Event()
        self._stop = False
        self._reload = False
        self._reopen = False
        self._interval_s = self._config.interval_s
        self._ahead_s = 0.0

    def run(self) -> None:
        """Make passes until a stop signal. Raises `AnotherDaemonError` before any further change."""
        try:
            self._run()
        except AnotherDaemonError as error:
            log.event(_LOG, logging.ERROR, "not steering", why=str(error))
            raise
        finally:
            self._readers.end()
            self._only_one.release()

    def _run(self) -> None:
        # First, for without an answer from slurmctld the claim takes long, and a signal would end the process.
        for number in (signal.SIGTERM, signal.SIGINT, *_REQUESTS):
            signal.signal(number, self.on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)
        try:
            self._claim()
        except SlurmError as error:
            log.event(_LOG, logging.WARNING, "not steering yet, will try again", why=str(error))
        self._look_at_spool()
        log.event(_LOG, logging.INFO, "started", policy=self._config.policy, interval_s=self._config.interval_s)
        notify("READY=1", f"STATUS=policy {self._config.policy}")
        while not self._stop:
            self._wake.clear()
            self._obey()
            began_s = time.monotonic()
            self._pass()
            took_s = time.monotonic() - began_s
            notify(f"STATUS=policy {self._config.policy}, the last pass took {took_s:.2f} s")
            self.rest(began_s, began_s + self._interval_s)
        notify("STOPPING=1")
        if self._only_one.is_settled:
            self._withdraw()
        log.event(_LOG, logging.INFO, "stopped")

    def _look_at_spool(self) -> None:
        """Say it if we shall not be able to read reports; that the file system hangs is said elsewhere."""
        spool, found = self._config.progress.spool, ""

        def look() -> None:
            nonlocal found
            found = sighting.group_fault(spool, os.geteuid(), (os.getegid(), *os.getgroups()))

        if BoundedCall(PATIENCE_S).run(look) and found:
            log.event(_LOG, logging.WARNING, "reports not read, see sexplsched doctor", spool=str(spool), why=found)

    def rest(self, began_s: float, until_s: float) -> None:
        """Wait for the next pass or a signal, and keep systemd's watchdog informed.

        A job that has saved for its preemption trains on and loses that work. So the next pass is made as soon as one
        has saved, unless slurmctld is busy; also as soon as postponed changes may be made.
        """
        soonest_s = began_s + _SOONEST * self._interval_s
        is_quiet = self._interval_s <= self._config.interval_s
        while True:
            notify("WATCHDOG=1")
            now_s = time.monotonic()
            if until_s <= now_s or (is_quiet and soonest_s <= now_s and self._is_awaited()):
                return
            looks = self._controller.has_asked or self._controller.waits_for_gap
            longest_s = _LOOK_S if is_quiet and looks else WATCHDOG_S
            if self._wake.wait(min(until_s - now_s, longest_s)):
                return

    def _is_awaited(self) -> bool:
        """Whether the next pass should be made now; without an answer from slurmctld it would be useless."""
        try:
            return self._controller.is_awaited(self._now_s())
        except SlurmError as error:
            log.event(_LOG, logging.DEBUG, "state of backfill unknown", why=str(error))
            return False

    def once(self) -> int:
        """One pass, repeated while it waits for backfill, or for jobs that it has asked to save and leave.

        For the latter at most the grace period and a few intervals, in which no further job is asked, and an error of
        Slurm or of the policy ends a pass only. Returns the exit code: 1 if Slurm refused a change. Raises
        `AnotherDaemonError`, and such an error of the first pass or the last.
        """
        try:
            self._claim()
            _ = self._load()
            failures = self._controller.reconcile(self._now_s()).failures
            self._controller.ask_no_more()
            until_s = time.monotonic() + self._config.leave_within_s
            while self._controller.waits_for_gap or (self._controller.has_asked and time.monotonic() < until_s):
                self.rest(began_s := time.monotonic(), began_s + self._interval_s)
                try:
                    self._claim()
                    failures += self._controller.reconcile(self._now_s()).failures
                except (SlurmError, PolicyError) as error:
                    if time.monotonic() >= until_s:
                        raise
                    log.event(_LOG, logging.ERROR, _GIVEN_UP, why=str(error))
            return 1 if failures else 0
        finally:
            self._only_one.release()

    def dry_run(self) -> str:
        """What a pass would change, one line per change."""
        return "\n".join(shown(change) for change in self._controller.decide(time.time()).changes)

    def _claim(self) -> None:
        """Make sure that no other daemon steers or has our files. Raises `AnotherDaemonError`, and `SlurmError`."""
        if not self._only_one.is_settled:
            can = self._controller.capabilities()
            self._cluster_name = can.cluster_name
            self._only_one.settle(can.cluster, self._config.progress.spool)
            claimed = self._config.claimed().items()
            self._unclaimed = tuple(Claim(where, can.cluster_name, key) for key, where in claimed)
        self._unclaimed = tuple(claim for claim in self._unclaimed if not claim.is_made())
        self._only_one.check(self._valid_s())

    def _valid_s(self) -> float:
        """How long the heartbeat lasts."""
        return _BEATS_MISSED * self._interval_s + _COMMANDS_OF_A_PASS * self._config.slurm.timeout_s

    def _check_claims(self, config: Config) -> None:
        """Raise `AnotherDaemonError` if another cluster or daemon has what a new configuration names.

        Before it is known which cluster this is, that ends the daemon, as at its start.
        """
        if not self._cluster_name:
            return
        for key, where in config.claimed().items():
            if where != self._config.claimed()[key]:
                Claim(where, self._cluster_name, key).check()
        if config.progress.spool != self._config.progress.spool:
            self._only_one.try_spool(config.progress.spool, self._valid_s())

    def _pass(self) -> None:
        """One pass. An error of Slurm ends the pass, not the daemon; another daemon ends this one."""
        try:
            self._claim()
            if self._may_pass():
                began_s = time.monotonic()
                done = self._controller.reconcile(self._now_s(), self._interval_s)
                self._totals = counted(self._totals, done.changes, done.failures, time.monotonic() - began_s)
                self._publish(done)
                if self._fault.end():
                    log.event(_LOG, logging.INFO, "passes are made again")
        except AnotherDaemonError:
            raise
        except (SlurmError, PolicyError) as error:
            self._count_failed()
            level = self._fault.level(str(error), time.monotonic())
            log.event(_LOG, level, _GIVEN_UP, why=str(error))
        except Exception:
            # A bug of ours must not end the daemon either: the next snapshot may not trigger it.
            self._count_failed()
            _LOG.exception("pass failed, will try again")

    def _count_failed(self) -> None:
        failed = self._totals.failed_passes + 1
        self._totals = replace(self._totals, failed_passes=failed, audit_faults=self._controller.trail.faults)
        self._publisher.count(self._totals)

    def _publish(self, done: Pass) -> None:
        """Publish what the pass observed and planned. Slurm is asked each time what users may see."""
        self._totals = replace(self._totals, audit_faults=self._controller.trail.faults)
        try:
            can = self._controller.capabilities()
        except SlurmError as error:
            log.event(_LOG, logging.WARNING, "state not published, it is not known who may see it", why=str(error))
            return
        view = View.planned(self._config, done.seen, done.plan)
        hidden = private(can, self._config.state.readers)
        self._publisher.publish(view, done.changes, hidden, can.cluster, self._totals, self._ahead_s)
        self._readers.keep()

    def _withdraw(self) -> None:
        """Remove leases and pins; an unreachable Slurm must not keep the daemon from stopping."""
        try:
            for failure in self._controller.withdraw(self._now_s()):
                log.event(_LOG, logging.WARNING, "refused by Slurm", change=shown(failure.change), why=failure.message)
        except SlurmError as error:
            what = "pins stay, and leases until two minutes after their planned start"
            log.event(_LOG, logging.WARNING, what, why=str(error))

    def _may_pass(self) -> bool:
        """Whether slurmctld has time for a pass now; sets the interval."""
        now = backoff(self._load(), self._interval_s, self._config.interval_s, self._config.backpressure)
        self._interval_s = now.interval_s
        if now.is_busy:
            postponed = not now.may_pass
            log.event(_LOG, logging.WARNING, "slurmctld is busy", interval_s=now.interval_s, postponed=postponed)
        return now.may_pass

    def _load(self) -> ControllerLoad:
        """How busy slurmctld is. Its clock is the one that we go by from now on."""
        asked_s = time.time()
        load = self._controller.load()
        before_s, self._ahead_s = self._ahead_s, load.ahead_s(asked_s, time.time())
        if abs(self._ahead_s - before_s) > _STEP_S:
            log.event(_LOG, logging.WARNING, "going by slurmctld's clock", ours_is_ahead_s=round(self._ahead_s))
        return load

    def _now_s(self) -> float:
        """The time by slurmctld's clock, as all times of jobs are.

        By one that is ahead a requeued job would be started before its node takes it again, and fail.
        """
        return time.time() - self._ahead_s

    def _obey(self) -> None:
        """Handle requests of signals between two passes."""
        if self._reopen:
            self._reopen = False
            try:
                log.set_up(self._log_level, self._log_file)
            except log.LogError as error:
                log.event(_LOG, logging.ERROR, "log not reopened, the old one stays open", why=str(error))
        if self._reload:
            self._reload = False
            try:
                config = configuration.load(self._config_path)
                self._check_claims(config)
                slurm, former = config.slurm, self._config.slurm
                is_same = (slurm.client, slurm.timeout_s) == (former.client, former.timeout_s)
                client = None if is_same else choose(slurm.client, slurm.timeout_s)
                self._controller.reconfigure(config)
                if client is not None:
                    self._controller.use(client)
                self._config = config
                state = self._config.state
                if state.directory != self._publisher.directory:
                    self._publisher = Publisher(state.directory)
                self._readers.end()
                self._readers = serving.ServerProcess(state.directory, state.socket)
                self._only_one.release()  # the spool may have changed: the next pass claims the cluster again
                log.event(_LOG, logging.INFO, "configuration reloaded", policy=self._config.policy)
            except ExplschedError as error:
                log.event(_LOG, logging.ERROR, "configuration not reloaded, the old one stays in force", why=str(error))

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Record the signal's request, and end the wait for the next pass."""
        self._stop = self._stop or number in (signal.SIGTERM, signal.SIGINT)
        self._reload = self._reload or number == signal.SIGHUP
        self._reopen = self._reopen or number == signal.SIGUSR2
        self._wake.set()
