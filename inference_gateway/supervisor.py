"""Runs a gateway on this node: HAProxy, the activator and the control plane, each started again when it ends.

The supervisor decides nothing. When the control plane dies HAProxy goes on as it is; when HAProxy dies it is started
again with the replicas it had. In a Slurm job it also keeps a successor in the queue and hands over to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from inference_gateway import job, services
from inference_gateway.children import Child
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.control.settings import settings
from inference_gateway.dataplane.configuration import Files
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.errors import GatewayError, StartError
from inference_gateway.replicas.places import Places
from inference_gateway.services import GatewaySection
from sched_policy.errors import ExplschedError
from slurm_plugin import log
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import SlurmError, SlurmJob

_LOG = logging.getLogger("explsched.gateway")
_POLL_S = 0.5
_ADOPTION_S = 30.0
"""The address is announced when the control plane has filled the data plane, and after this time at the latest."""

_SUCCESSOR_S = 60.0
"""Time between two looks for the successor job."""

_PORT_S = 120.0
_RESTART_S = 5.0


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """Who serves at the address. Times are seconds since the epoch."""

    url: str
    host: str
    port: int
    pid: int
    job_id: int | None
    run_directory: str
    since_s: float
    node: str


class Supervisor:
    """The life of one gateway on one node."""

    def __init__(self, section: GatewaySection, services_path: Path, sbatch: Sequence[str]) -> None:
        self._section = section
        self._services_path = services_path
        self._sbatch = sbatch
        self._places = Places(section.state_directory)
        self._places.make()
        self._job_id = job.own_job_id()
        self._client = CliClient(section.slurm.timeout_s)
        listen = section.listen.host
        self._host = listen if listen not in ("0.0.0.0", "::") else socket.getfqdn()  # noqa: S104
        self._run_directory = _private_directory(section.name, self._job_id)
        self._data_plane = HaproxyDataPlane(settings(section, self._places, self._run_directory))
        self._control = Child("control plane", self._control_plane())
        self._wake = threading.Event()
        self._stop = False
        self._handing_over = False
        self._announced = False
        self._began_s = time.time()
        self._successor: int | None = None
        self._successor_due_s = 0.0
        self._restart_due_s = 0.0

    def run(self) -> None:
        """Serve until told to stop, until all is drained for `gateway down`, or until a successor has taken over.

        Raises:
            StartError: HAProxy does not start.

        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        self._start_data_plane(self._predecessor())
        try:
            while not self._stop:
                self._tend()
                self._wake.wait(_POLL_S)
                self._wake.clear()
        finally:
            self._control.end()
            self._withdraw()
            self._data_plane.stop(grace_s=self._grace_s())
            self._clean_up()

    def _clean_up(self) -> None:
        """Keep the access log, and nothing else, of this node's directory."""
        log_file = self._data_plane.files.access_log
        try:
            with log_file.open("rb") as source, (self._places.root / "access.jsonl").open("ab") as target:
                shutil.copyfileobj(source, target)
            shutil.rmtree(self._run_directory)
        except OSError as error:
            log.event(_LOG, logging.ERROR, "not cleaned up", file=str(error.filename), why=error.strerror or "")

    def _tend(self) -> None:
        self._tend_data_plane()
        self._control.tend()
        if not self._announced:
            self._announce()
        if self._announced and self._job_id is not None:
            self._keep_successor()
        if self._handing_over and self._places.handover.exists():
            self._stop = True  # the successor's data plane is up: leave it the lock, finish what is in flight
        if self._places.closing.exists() and self._drained():
            self._stop = True

    def _start_data_plane(self, predecessor: Files | None) -> None:
        """Start HAProxy. A job tries for a while: what has its port may be about to end."""
        deadline_s = time.monotonic() + (_PORT_S if self._job_id is not None else 0.0)
        while True:
            try:
                self._data_plane.start(predecessor)
                return
            except StartError as error:
                if self._stop or time.monotonic() > deadline_s:
                    raise
                log.event(_LOG, logging.ERROR, "HAProxy does not start, will try again", why=str(error))
                self._wake.clear()
                self._wake.wait(_RESTART_S)

    def _tend_data_plane(self) -> None:
        """Start HAProxy or the activator again if it has ended."""
        now_s = time.monotonic()
        if now_s < self._restart_due_s:
            return
        if self._data_plane.alive():
            return
        log.event(_LOG, logging.ERROR, "HAProxy or the activator has ended, starting it again")
        try:
            self._data_plane.start()
        except GatewayError as error:
            self._restart_due_s = now_s + _RESTART_S
            log.event(_LOG, logging.ERROR, "data plane does not start, will try again", why=str(error))

    def _predecessor(self) -> Files | None:
        """The data plane of the job that hands over to this one, if it is on this node.

        One whose job was killed is ended, where Slurm has left it running: it would keep the port, and send requests to
        replicas that are gone.
        """
        record = state.read(self._places.gateway, GatewayRecord)
        if record is None or record.job_id in (None, self._job_id) or record.node != socket.gethostname():
            return None
        directory = Path(record.run_directory)
        if not directory.is_dir() or directory.stat().st_uid != os.getuid():
            return None
        found = HaproxyDataPlane(settings(self._section, self._places, directory))
        if not found.alive():
            return None
        try:
            if record.job_id in {running.job_id for running in job.jobs(self._client, self._section.name)}:
                return found.files
        except SlurmError as error:
            log.event(_LOG, logging.ERROR, "predecessor's state unknown", job=record.job_id, why=str(error))
            return found.files
        log.event(_LOG, logging.INFO, "ending the data plane that a killed job has left", job=record.job_id)
        found.stop(grace_s=0.0)
        return None

    def _announce(self) -> None:
        """Tell the world the address, once requests find the replicas that are there."""
        if self._job_id is not None and not self._places.handover.exists():
            self._places.handover.write_text(str(self._job_id), encoding="ascii")
        if self._reported() is None and time.time() < self._began_s + _ADOPTION_S:
            return
        scheme = "https" if self._section.listen.certificate else "http"
        port = self._section.listen.port
        node = socket.gethostname()
        url = f"{scheme}://{self._host}:{port}"
        record = GatewayRecord(
            url, self._host, port, os.getpid(), self._job_id, str(self._run_directory), self._began_s, node
        )
        new = self._places.address.with_name("address.new")
        new.write_text(url + "\n", encoding="ascii")
        new.replace(self._places.address)
        state.save(self._places.gateway, record)
        self._places.handover.unlink(missing_ok=True)
        self._announced = True
        log.event(_LOG, logging.INFO, "serving", url=url, job=self._job_id)

    def _withdraw(self) -> None:
        """Take the address back if it is still ours."""
        record = state.read(self._places.gateway, GatewayRecord)
        if record is not None and (record.pid, record.since_s) == (os.getpid(), self._began_s):
            self._places.address.unlink(missing_ok=True)
            self._places.gateway.unlink(missing_ok=True)

    def _keep_successor(self) -> None:
        """See that exactly one job waits to succeed this one; set it free when the time limit is near."""
        now_s = time.monotonic()
        if now_s < self._successor_due_s or self._places.closing.exists():
            return
        self._successor_due_s = now_s + _SUCCESSOR_S
        try:
            jobs = job.jobs(self._client, self._section.name)
            if self._successor not in {found.job_id for found in jobs}:
                self._successor = self._find_successor(jobs)
            left_s = job.handover_in_s(jobs, self._job_id, self._section.job.handover_s, time.time())
            self._successor_due_s = now_s + min(_SUCCESSOR_S, max(1.0, left_s))
            if left_s <= 0 and not self._handing_over:
                self._handing_over = True
                log.event(_LOG, logging.INFO, "handing over", successor=self._successor)
                job.release(self._client, self._successor)
        except SlurmError as error:
            self._successor_due_s = now_s + _RESTART_S
            log.event(_LOG, logging.ERROR, "no successor yet, will try again", why=str(error))

    def _find_successor(self, jobs: Sequence[SlurmJob]) -> int:
        """The job that waits to succeed this one; submitted if there is none."""
        waiting = [found.job_id for found in jobs if found.state == "PENDING" and found.job_id != self._job_id]
        if waiting:
            return waiting[0]
        self._handing_over = False  # one that was set free is gone again: the new one has to be, too
        new = job.submit(self._client, self._section, self._services_path, self._sbatch, after=self._job_id)
        log.event(_LOG, logging.INFO, "successor submitted", job=new)
        return new

    def _reported(self) -> Report | None:
        """What our own control plane has reported; None before it has, or while a predecessor's does."""
        shown = state.read(self._places.status, Report)
        ours = shown is not None and shown.run_directory == str(self._run_directory) and shown.time_s > self._began_s
        return shown if ours else None

    def _drained(self) -> bool:
        shown = self._reported()
        return shown is not None and shown.closing and not any(service.replicas for service in shown.services)

    def _grace_s(self) -> float:
        """How long requests in flight may take to finish: in a handover all the time there is left."""
        return float(self._section.job.handover_s) if self._handing_over else 10.0

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self._successor_due_s = 0.0  # the time limit is near, or has been changed: look at it
        else:
            self._stop = True
        self._wake.set()

    def _control_plane(self) -> list[str]:
        return [
            *(sys.executable, "-m", "inference_gateway.control"),
            *("--services", str(self._services_path), "--run-directory", str(self._run_directory)),
            *("--gateway-host", self._host),
        ]


def _private_directory(name: str, job_id: int | None) -> Path:
    """The gateway's directory on this node's own disk, for sockets and HAProxy's files; the same after a restart.

    Raises `GatewayError` if somebody else has made it.
    """
    path = Path(tempfile.gettempdir()) / f"explsched-gateway-{os.getuid()}-{name}-{job_id or 'local'}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise GatewayError(f"{path}: must be a directory of uid {os.getuid()} with mode 700, is not; remove it")
    return path


def run(services_path: Path, sbatch: Sequence[str]) -> None:
    """Run a gateway here until it is told to stop. Raises `ConfigError`, `GatewayError`."""
    section = services.load(services_path)
    try:
        supervisor = Supervisor(section, services_path.resolve(), sbatch)
    except OSError as error:
        raise GatewayError(f"{error.filename or section.state_directory}: {error.strerror}") from error
    supervisor.run()


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--sbatch", multiple=True)
def main(services_path: Path, sbatch: tuple[str, ...]) -> None:
    """Run a gateway in its Slurm job."""
    log.set_up("info", None)
    try:
        run(services_path, sbatch)
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
