"""The jobs before and after this one: whose data plane is taken over, and who waits to take over ours."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from explsched import log
from explsched.atomic_file import replace_file
from inference_gateway import job
from inference_gateway.control import state
from inference_gateway.control.settings import settings
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.replicas.places import Places
from inference_gateway.sections import GatewaySection
from slurm_plugin.client.errors import SlurmError
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import SlurmJob


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


def announce(places: Places, record: GatewayRecord) -> None:
    """Give the address to the world. Raises `OSError`."""
    replace_file(places.address, record.url + "\n")
    state.save(places.gateway, record)


def holder(places: Places) -> GatewayRecord | None:
    """Who has the address; None if nobody has."""
    return state.read(places.gateway, GatewayRecord)


def withdraw(places: Places, pid: int, since_s: float) -> None:
    """Take the address back if it is still that process's."""
    record = holder(places)
    if record is not None and (record.pid, record.since_s) == (pid, since_s):
        places.address.unlink(missing_ok=True)
        places.gateway.unlink(missing_ok=True)


_LOG = logging.getLogger("explsched.gateway")
_LOOK_S = 60.0
"""Time between two looks for the successor job."""

_RETRY_S = 5.0


def predecessor(section: GatewaySection, places: Places, client: SlurmClient, own: int | None) -> Files | None:
    """The data plane of the job that hands over to this one, if it is on this node.

    One whose job was killed is ended, where Slurm has left it running: it would keep the port, and send requests to
    replicas that are gone.
    """
    record = holder(places)
    if record is None or record.job_id in (None, own) or record.node != socket.gethostname():
        return None
    directory = Path(record.run_directory)
    if not directory.is_dir() or directory.stat().st_uid != os.getuid():
        return None
    found = HaproxyDataPlane(settings(section, places, directory))
    if not found.alive():
        return None
    try:
        if record.job_id in {running.job_id for running in job.jobs(client, section.name)}:
            return found.files
    except SlurmError as error:
        log.event(_LOG, logging.ERROR, "predecessor's state unknown", job=record.job_id, why=str(error))
        return found.files
    log.event(_LOG, logging.INFO, "ending the data plane that a killed job has left", job=record.job_id)
    found.stop(grace_s=0.0)
    return None


@dataclass(slots=True)
class Succession:
    """Sees that exactly one job waits to succeed the job `own`, and sets it free when the time limit is near."""

    client: SlurmClient
    places: Places
    services_path: Path
    sbatch: Sequence[str]
    own: int | None
    handing_over: bool = False
    _successor: int | None = None
    _due_s: float = 0.0

    def look_now(self) -> None:
        """The time limit is near, or has been changed: do not wait for the next look."""
        self._due_s = 0.0

    def taken_over(self) -> bool:
        """Whether the successor that was set free has a data plane that takes requests."""
        if not self.handing_over:
            return False
        try:
            return self.places.handover.read_text(encoding="ascii") not in ("", str(self.own))
        except FileNotFoundError:
            return False

    def coming(self) -> bool:
        """Whether a successor was set free and does not take requests yet."""
        return self.handing_over and not self.taken_over()

    def tend(self, section: GatewaySection) -> None:
        """Look for the successor if it is time for that. Nothing happens outside of a job."""
        now_s = time.monotonic()
        if self.own is None or now_s < self._due_s or self.places.closing.exists():
            return
        try:
            jobs = job.jobs(self.client, section.name)
            if self._successor not in {found.job_id for found in jobs}:
                self._successor = self._find(section, jobs, self.own)
            left_s = job.handover_in_s(jobs, self.own, section.job.handover_s, time.time())
            if left_s <= 0 and not self.handing_over:
                if not any((found.job_id, found.state) == (self._successor, "RUNNING") for found in jobs):
                    job.release(self.client, self._successor)
                self.handing_over = True
                log.event(_LOG, logging.INFO, "handing over", successor=self._successor)
            self._due_s = now_s + (_RETRY_S if self.handing_over else min(_LOOK_S, left_s))
        except SlurmError as error:
            self._due_s = now_s + _RETRY_S
            log.event(_LOG, logging.ERROR, "no successor yet, will try again", why=str(error))

    def _find(self, section: GatewaySection, jobs: Sequence[SlurmJob], own: int) -> int:
        """The job that waits to succeed this one; submitted if there is none."""
        waiting = [found.job_id for found in jobs if found.state == "PENDING" and found.job_id != own]
        if waiting:
            return waiting[0]
        self.handing_over = False  # one that was set free is gone again: the new one has to be, too
        new = job.submit(self.client, section, self.services_path, self.sbatch, after=own)
        log.event(_LOG, logging.INFO, "successor submitted", job=new)
        return new
