"""The control plane's process: `python -m inference_gateway.control`, kept running by the gateway's supervisor.

It waits for the gateway's lock, finds the replicas that are there, and then ticks once a second until SIGTERM, or
until its supervisor is gone.
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
from explsched.errors import ExplschedError
from inference_gateway import accepted
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.data_plane_sync import DataPlaneSync
from inference_gateway.control.loop import ControlPlane
from inference_gateway.control.planes import Follower
from inference_gateway.control.report import ControlPlaneCollector, Report
from inference_gateway.control.state import EventLog
from inference_gateway.dataplane.activator_link import WakeListener
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.statistics import exposition
from inference_gateway.errors import ActivatorError, GatewayError
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.errors import SlurmError

_LOG = logging.getLogger("explsched.gateway")
TICK_S = 1.0
_RETRY_S = 0.5
_PROBES = 16


class _Process:
    """The life of the process: signals in, ticks out."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._stop = threading.Event()
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self._stop.set())

    @property
    def stopping(self) -> bool:
        """Whether to end: told so, or without the supervisor that would end us."""
        return self._stop.is_set() or os.getppid() != self._parent

    def run(self, control: ControlPlane) -> None:
        """Adopt, then tick until told to stop."""
        while not self.stopping:
            try:
                control.adopt(time.time())
                break
            except (SlurmError, GatewayError) as error:
                log.event(_LOG, logging.ERROR, "cannot take over yet, will try again", why=str(error))
                self.pause()
        with WakeListener(self._files.control_socket) as calls:
            while not self.stopping:
                began_s = time.monotonic()
                try:
                    shown = control.tick(time.time())
                    self._publish(shown)
                    cold = frozenset(service.name for service in shown.services if not service.replicas)
                except Exception:
                    # A defect of ours must not leave the replicas alone: the next second may be free of what caused it.
                    _LOG.exception("tick failed, will try again")
                    cold = frozenset()
                self._rest(calls, began_s + TICK_S, cold)

    def _rest(self, calls: WakeListener, due_s: float, cold: frozenset[str]) -> None:
        """Wait for the next second, or for a first request of a service that has no replica."""
        while not self.stopping and (left_s := due_s - time.monotonic()) > 0:
            try:
                if cold & calls.receive(left_s).keys():
                    return
            except ActivatorError as error:
                log.event(_LOG, logging.ERROR, "not understood", why=str(error))

    def _publish(self, shown: Report) -> None:
        """Leave our metrics where the gateway's /metrics takes them from."""
        path = self._files.control_metrics
        try:
            replace_file(path, exposition(ControlPlaneCollector(shown)))
        except OSError as error:
            log.event(_LOG, logging.ERROR, "metrics not written", file=str(path), why=error.strerror or "")

    def follow(self, follower: Follower) -> None:
        """Do for half a second what the gateway that leads has ordered."""
        try:
            follower.tick(time.time())
        except Exception:
            _LOG.exception("tick failed, will try again")
        self.pause()

    def pause(self) -> None:
        """Wait a little, or until told to stop."""
        self._stop.wait(_RETRY_S)


def _follower(now: Accepted, run_directory: Path) -> Follower:
    concurrency = {name: service.concurrency for name, service in now.section.services.items()}
    plane = HaproxyDataPlane(now.settings(run_directory))
    sync = DataPlaneSync(plane, concurrency, EventLog(now.paths.events))
    return Follower(sync, now.paths, str(run_directory), concurrency)


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--accepted", "kept", required=True, type=click.Path(path_type=Path))
@click.option("--run-directory", required=True, type=click.Path(path_type=Path))
@click.option("--gateway-host", required=True)
@click.option("--slot", type=click.IntRange(1, 2), default=1)
def main(services_path: Path, kept: Path, run_directory: Path, gateway_host: str, slot: int) -> None:
    """Run the control plane of a gateway."""
    log.set_up("info", None)
    process = _Process(Files(run_directory))
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
                follower = follower or _follower(now, run_directory)
                process.follow(follower)
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
