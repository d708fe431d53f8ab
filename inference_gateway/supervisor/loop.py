"""Keeps a gateway running on one node: `python -m inference_gateway.supervisor.loop` in its Slurm job.

The supervisor makes no decisions about replicas. When the control plane dies HAProxy continues as it is; when HAProxy
dies it is restarted with its replicas. In a Slurm job the supervisor also keeps a successor in the queue and hands over
to it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click

from explsched import interpreter, log
from explsched.errors import ExplschedError, SlurmError
from explsched.strict_yaml import ConfigError
from inference_gateway import accepted, gateway_paths
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.planes import NO_MORE_S, PlaneReport
from inference_gateway.control.replica import Phase
from inference_gateway.control.report import Report
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.errors import GatewayError
from inference_gateway.model import Endpoint, authority
from inference_gateway.supervisor import jobs
from inference_gateway.supervisor.child import Child
from inference_gateway.supervisor.reloads import Revision, accepted_files
from inference_gateway.supervisor.succession import Succession, predecessor
from slurm_plugin.client.cli import CliClient

_LOG = logging.getLogger("explsched.gateway")

_POLL_S = 0.2
"""An HAProxy that was killed is missing for at most this long, plus its start time."""

_ADOPTION_S = 30.0
"""The address is announced once the control plane has filled the data plane, and after this time at the latest."""

_LAST_WAIT_S = 15.0
"""A gateway told to end while its successor starts continues for this long: half of Slurm's default KillWait."""

_GRACE_S = 10.0
"""How long requests in flight may take where no successor is told to come."""

_SHOW_S = 1.0
_PORT_S = 120.0
_RESTART_S = 5.0


class Supervisor:
    """One gateway on one node. `after`: the job that its own job succeeds."""

    def __init__(self, now: Accepted, sbatch: Sequence[str], after: int | None = None) -> None:
        self._job_id = jobs.own_job_id()
        self._sbatch = sbatch
        self._after = after
        self._paths = now.paths
        self._run_directory = self._paths.make_for(now.section.name, self._job_id)
        settings = now.settings(self._run_directory)
        now.keep()
        self._data_plane = HaproxyDataPlane(settings)
        self._client = CliClient(now.section.slurm.timeout_s)
        listen = now.section.listen.host
        self._host = listen if listen not in ("0.0.0.0", "::") else socket.getfqdn()  # noqa: S104
        self._children = self._wanted_children(now)
        self._succession = Succession(self._client, self._paths, sbatch, self._job_id)
        self._revision = Revision(now, self._apply)
        self._wake = threading.Event()
        self._stop = False
        self._ending_since_s: float | None = None
        self._announced = False
        self._began_s = time.time()
        self._restart_due_s = 0.0
        self._trouble = ""

    def run(self) -> None:
        """Serve until stopped, until all replicas are drained for `gateway down`, or until a successor has taken over.

        Raises:
            GatewayError: HAProxy or the activator does not start.

        """
        with gateway_paths.supervised(self._run_directory):
            self._run()

    def _run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        record = state.holder(self._paths)
        before = predecessor(record, self._revision.now, self._client, self._job_id) if record else None
        self._start_data_plane(before)
        self._revision.check_changed()
        try:
            self._try_check()
            while not self._stop:
                self._wake.wait(_POLL_S)
                self._wake.clear()
                self._try_check()
        finally:
            leaving = self._paths.leaving / f"{self._job_id}.json" if self._succession.handing_over else None
            if leaving is not None:
                self._show_requests(leaving, 0.0)  # before its successor's control plane can lead
            self._end_children()
            state.withdraw(self._paths, os.getpid(), self._began_s)
            self._finish(leaving)
            gateway_paths.clean_up(self._run_directory, self._data_plane.files.access_log, self._paths.access_log)

    def _try_check(self) -> None:
        """Check all; a file server or disk that fails for a while must not end what goes on without it."""
        try:
            self._check()
            self._trouble = ""
        except OSError as error:
            trouble = f"{error.filename or ''}: {error.strerror or error}"
            if trouble != self._trouble:  # once, not several times a second
                log.event(_LOG, logging.ERROR, "not all was checked, will try again", why=trouble)
            self._trouble = trouble
            self._stop = self._stop or self._ending_since_s is not None

    def _check(self) -> None:
        self._check_data_plane()
        for child in self._children:
            child.keep_running()
        # Before its predecessor is told, which then ends: if this job died without a successor none would be left.
        self._succession.check(self._revision.now)
        if not self._announced:
            self._announce()
        else:
            self._revision.check()
        if self._succession.taken_over():
            self._stop = True  # the successor's data plane is up: release the lock, finish the requests in flight
        if self._paths.closing.exists() and self._drained():
            self._stop = True
        if self._ending_since_s is not None:
            waited_s = time.monotonic() - self._ending_since_s
            self._stop = self._stop or not self._succession.coming() or waited_s > _LAST_WAIT_S

    def _start_data_plane(self, before: Files | None) -> None:
        """Start HAProxy and the activator. In a job it retries for a while: who has the port may be about to end.

        Then, and where the job is to end, another job tries: no gateway that has served stays without a job.
        """
        deadline_s = time.monotonic() + (_PORT_S if self._job_id is not None else 0.0)
        in_force = self._revision.now
        while True:
            try:
                self._data_plane.start(before)
                if self._revision.now != in_force:
                    self._keep()
                    self._revision.ask_other()
                return
            except GatewayError as error:
                if self._ending_since_s is not None or time.monotonic() >= deadline_s:
                    if self._is_left_to_another() or self._ending_since_s is not None:
                        raise
                    deadline_s = time.monotonic() + _PORT_S
                log.event(_LOG, logging.ERROR, "data plane does not start, will try again", why=str(error))
                if self._after is not None:
                    self._try_others(in_force)
                self._wake.clear()
                self._wake.wait(_RESTART_S)

    def _keep(self) -> None:
        """Save the files with which the data plane has started. Raises `GatewayError`; it has been stopped then."""
        try:
            self._revision.now.keep()
        except GatewayError:
            self._data_plane.stop(grace_s=0.0)
            raise

    def _try_others(self, in_force: Accepted) -> None:
        """Let the next start be with the files of now, the one after it with those in force again, and so on.

        HAProxy may refuse either: those in force, for instance, if it is of another version on this node.
        """
        try:
            new = accepted.changed(in_force) if self._revision.now == in_force else in_force
            if new != self._revision.now:
                self._data_plane = HaproxyDataPlane(new.settings(self._run_directory))
                self._revision.now = new
                self._take(new)
        except (ConfigError, GatewayError) as error:
            log.event(_LOG, logging.ERROR, "services file refused, the accepted one stays in force", why=str(error))

    def _is_left_to_another(self) -> bool:
        """Have a job in the queue that tries instead, if the gateway has served before; False if Slurm takes none."""
        if self._job_id is None or self._after is None or self._paths.closing.exists():
            return True
        try:
            jobs.submit_again(self._client, self._revision.now, self._sbatch, self._job_id)
        except SlurmError as error:
            log.event(_LOG, logging.ERROR, "no other job can try, will try again", why=str(error))
            return False
        gateway_paths.clean_up(self._run_directory, self._data_plane.files.access_log, self._paths.access_log)
        return True

    def _check_data_plane(self) -> None:
        """Restart HAProxy or the activator if it has ended."""
        now_s = time.monotonic()
        if now_s < self._restart_due_s or self._data_plane.alive():
            return
        log.event(_LOG, logging.ERROR, "HAProxy or the activator has ended, starting it again")
        try:
            self._data_plane.start()
        except GatewayError as error:
            self._restart_due_s = now_s + _RESTART_S
            log.event(_LOG, logging.ERROR, "data plane does not start, will try again", why=str(error))

    def _announce(self) -> None:
        """Publish the address once the data plane has the existing replicas."""
        ready = None if self._job_id is None else self._paths.handover(self._job_id)
        if ready is not None and not ready.exists():
            ready.touch()  # which tells the predecessor
        if self._reported() is None and not self._follows() and time.time() < self._began_s + _ADOPTION_S:
            return
        listen = self._revision.now.section.listen
        port = self._revision.now.port
        url = f"{'https' if listen.certificate else 'http'}://{authority(self._host, port)}"
        who = (url, self._host, port, os.getpid(), self._job_id)
        record = state.GatewayRecord(*who, str(self._run_directory), self._began_s, socket.gethostname())
        if not state.announce(self._paths, record):
            return
        if ready is not None:
            ready.unlink(missing_ok=True)
        self._announced = True
        log.event(_LOG, logging.INFO, "serving", url=url, job=self._job_id)

    def _reported(self) -> Report | None:
        """The report of our own control plane; None before its first one, or while a predecessor's still reports."""
        shown = state.read(self._paths.status, Report)
        return shown if shown is not None and self._is_ours(shown) else None

    def _follows(self) -> bool:
        """Whether our HAProxy has carried out the orders of the other gateway's control plane, the leader."""
        shown = state.read(self._paths.plane, PlaneReport) if self._revision.now.section.job.second else None
        return shown is not None and self._is_ours(shown) and shown.orders_s > 0

    def _is_ours(self, shown: Report | PlaneReport) -> bool:
        return shown.run_directory == str(self._run_directory) and shown.time_s > self._began_s

    def _drained(self) -> bool:
        shown = state.read(self._paths.status, Report) if self._follows() else self._reported()
        return shown is not None and shown.closing and not shown.replicas

    def _finish(self, leaving: Path | None) -> None:
        """Finish the requests in flight. In a handover they have all the remaining time, and are shown meanwhile."""
        if leaving is None:
            self._data_plane.stop(grace_s=_GRACE_S)
            return
        began_s, settings = time.monotonic(), self._data_plane.settings
        deadline_s = began_s + self._revision.now.section.job.handover_s
        # HAProxy answers one more request on each idle connection, by the replicas that it knows.
        idle_until_s = began_s + settings.client_timeout_s + settings.request_timeout_s
        self._data_plane.finish()
        while self._data_plane.alive() and time.monotonic() < deadline_s:
            self._show_requests(leaving, NO_MORE_S if time.monotonic() > idle_until_s else 0.0)
            self._hand_on()
            self._wake.clear()
            self._wake.wait(_SHOW_S)
        self._data_plane.stop(grace_s=max(0.0, deadline_s - time.monotonic()))
        leaving.unlink(missing_ok=True)

    def _show_requests(self, path: Path, orders_s: float) -> None:
        """Publish which replicas have requests here: whoever leads may drain one of them."""
        try:
            servers, traffic = tuple(self._data_plane.open_requests()), tuple(self._data_plane.traffic())
        except GatewayError as error:
            log.event(_LOG, logging.ERROR, "requests in flight are not known", why=str(error))
            return
        state.show(path, PlaneReport(str(self._run_directory), time.time(), orders_s, servers, traffic))

    def _hand_on(self) -> None:
        """Let requests that wait here for a replica go to those that serve by now; our control plane has ended."""
        shown = state.read(self._paths.status, Report)
        if shown is None or shown.run_directory == str(self._run_directory):
            return
        known = self._revision.now.section.services
        try:
            for service in (one for one in shown.services if one.name in known):
                serving = (replica for replica in service.replicas if replica.phase == Phase.SERVING)
                most = known[service.name].concurrency
                self._data_plane.hand_on(service.name, [Endpoint(r.name, r.host, r.port, most) for r in serving])
        except GatewayError as error:
            log.event(_LOG, logging.ERROR, "requests that wait are not handed on", why=str(error))

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._revision.check_now()
        elif number == signal.SIGUSR1:
            self._succession.hand_over_now()
        else:
            self._ending_since_s = time.monotonic()
        self._wake.set()

    def _apply(self, new: Accepted) -> None:
        """Put a configuration in force. Raises `GatewayError`; the old one then remains in force."""
        for child in self._children[1:]:  # a batch worker takes the new HAProxy's 404 for the answer of its requests
            child.end()
        old = self._data_plane.settings
        self._data_plane.apply(new.settings(self._run_directory))
        try:
            new.keep()
        except GatewayError:
            self._data_plane.apply(old)
            raise
        self._end_children()
        self._take(new)  # new children read the saved files and adopt what runs

    def _take(self, new: Accepted) -> None:
        """Go by this configuration from now on."""
        self._children = self._wanted_children(new)
        self._client = self._succession.client = CliClient(new.section.slurm.timeout_s)

    def _end_children(self) -> None:
        for child in self._children:
            child.end()

    def _wanted_children(self, now: Accepted) -> list[Child]:
        """The control plane and, where a service accepts batches, the batch worker."""
        files = ("--services", str(now.services_path), "--accepted", str(self._paths.accepted))
        common = (*files, "--run-directory", str(self._run_directory))
        slot = ("--slot", str(now.slot)) if now.slot > 1 else ()
        control = interpreter.of_module("inference_gateway.control.loop", *common, *slot, "--gateway-host", self._host)
        batches = interpreter.of_module("inference_gateway.batches.worker", *common)
        found = [Child("control plane", control)]
        return found if now.batches() is None else [*found, Child("batch worker", batches)]


def run(now: Accepted, sbatch: Sequence[str], after: int | None = None) -> None:
    """Run a gateway on this node until it is stopped. `after`: the job that its job succeeds. Raises `GatewayError`."""
    try:
        supervisor = Supervisor(now, sbatch, after)
    except OSError as error:
        raise GatewayError(f"{error.filename or now.section.state_directory}: {error.strerror}") from error
    supervisor.run()


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--accepted", "kept", type=click.Path(path_type=Path))
@click.option("--slot", type=click.IntRange(1, 2), default=1)
@click.option("--after", type=int)
@click.option("--sbatch", multiple=True)
def main(services_path: Path, kept: Path | None, slot: int, after: int | None, sbatch: tuple[str, ...]) -> None:
    """Run a gateway in its Slurm job."""
    log.set_up("info", None)
    try:
        run(accepted_files(services_path, kept, slot), sbatch, after)
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
