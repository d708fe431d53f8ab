"""The control plane's process, `python -m inference_gateway.control.loop`, kept running by the supervisor.

It waits for the gateway's lock, adopts the existing replicas, and then ticks once a second until SIGTERM, or until its
supervisor is gone. With two gateways it follows the leader's orders while it waits.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from explsched import log
from explsched.atomic_file import replace_file
from explsched.errors import ExplschedError, SlurmError
from inference_gateway import accepted
from inference_gateway.control import state
from inference_gateway.control.control_plane import ControlPlane
from inference_gateway.control.planes import Follower
from inference_gateway.control.report import ControlPlaneCollector, Report
from inference_gateway.dataplane.endpoints import WakeListener
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.statistics import exposition
from inference_gateway.errors import ActivatorError, GatewayError
from slurm_plugin.client.cli import CliClient

_LOG = logging.getLogger("explsched.gateway")
TICK_S = 1.0
_RETRY_S = 0.5
_PROBES = 16


class ControlProcess:
    """The process: handles signals and runs the ticks."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._stop = threading.Event()
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self._stop.set())

    @property
    def stopping(self) -> bool:
        """Whether to end: a signal has arrived, or the supervisor is gone."""
        return self._stop.is_set() or os.getppid() != self._parent

    def run(self, control: ControlPlane) -> None:
        """Adopt the replicas, then tick until stopped."""
        while not self.stopping:
            try:
                control.adopt(time.time())
                break
            except (SlurmError, GatewayError) as error:
                log.event(_LOG, logging.ERROR, "cannot adopt the running replicas yet, will retry", why=str(error))
                self.pause()
        else:
            return
        due_s, called, heard = 0.0, frozenset[str](), frozenset[str]()
        with WakeListener(self._files.control_socket) as calls:
            while not self.stopping:
                due_s = due_s if called else time.monotonic() + TICK_S
                try:
                    shown = control.tick(time.time(), called)
                    self._publish(shown)
                    cold = frozenset(service.name for service in shown.services if not service.replicas)
                except Exception:
                    # A defect must not end the loop: the next tick may be free of its cause.
                    _LOG.exception("tick failed, will try again")
                    cold = frozenset()
                # A service that cannot be started now calls every second while requests wait: once is enough.
                heard = cold & (heard | called)
                called = self._rest(calls, due_s, cold - heard)
        control.end(time.time())

    def _rest(self, calls: WakeListener, due_s: float, cold: frozenset[str]) -> frozenset[str]:
        """Wait until the next second, or for the first request of a `cold` service; returns those that called."""
        while not self.stopping and (left_s := due_s - time.monotonic()) > 0:
            try:
                if called := cold & calls.receive(left_s).keys():
                    return called
            except ActivatorError as error:
                log.event(_LOG, logging.ERROR, "not understood", why=str(error))
        return frozenset()

    def _publish(self, shown: Report) -> None:
        """Write the metrics to the file that the gateway's /metrics appends."""
        path = self._files.control_metrics
        try:
            replace_file(path, exposition(ControlPlaneCollector(shown)))
        except OSError as error:
            log.event(_LOG, logging.ERROR, "metrics not written", file=str(path), why=error.strerror or "")

    def follow(self, follower: Follower) -> None:
        """Run one tick of a follower, then pause."""
        try:
            follower.tick(time.time())
        except Exception:
            _LOG.exception("tick failed, will try again")
        self.pause()

    def pause(self) -> None:
        """Wait for `_RETRY_S`, or until stopped."""
        self._stop.wait(_RETRY_S)


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--accepted", "kept", required=True, type=click.Path(path_type=Path))
@click.option("--run-directory", required=True, type=click.Path(path_type=Path))
@click.option("--gateway-host", required=True)
@click.option("--slot", type=click.IntRange(1, 2), default=1)
def main(services_path: Path, kept: Path, run_directory: Path, gateway_host: str, slot: int) -> None:
    """Run the control plane of a gateway."""
    log.set_up("info", None)
    process = ControlProcess(Files(run_directory))
    try:
        now = accepted.kept(kept, services_path, slot) or accepted.read(services_path, slot)
        section = now.section
        paths = now.paths
        paths.make()
        follower: Follower | None = None
        while not process.stopping:
            with state.locked(paths.lock) as ours:
                if ours:
                    data_plane = HaproxyDataPlane(now.settings(run_directory))
                    client = CliClient(section.slurm.timeout_s)
                    with ThreadPoolExecutor(1) as slurm, ThreadPoolExecutor(_PROBES) as probes:
                        where = (run_directory, gateway_host)
                        process.run(ControlPlane(section, paths, data_plane, client, *where, slurm, probes, now.keys))
                    return
            if section.job.second is None:
                process.pause()
            else:
                follower = follower or Follower.of(now, run_directory)
                process.follow(follower)
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
