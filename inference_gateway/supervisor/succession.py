"""Who serves after whom: a job takes over its predecessor's data plane and keeps a successor in the queue."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from explsched import log
from explsched.errors import SlurmError, SlurmUnreachableError
from inference_gateway import gateway_paths
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.state import GatewayRecord
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import Processes
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.supervisor.jobs import active_jobs, cancel, handover_in_s, options, release, submit, tag
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import SlurmJob

_LOG = logging.getLogger("explsched.gateway")

_CHECK_S = 60.0
"""Time between two checks of the successor job."""

_RETRY_S = 5.0
_LONGEST_RETRY_S = 30.0
"""Until Slurm is asked again, from first to last, while it does not answer."""


def predecessor(record: GatewayRecord, now: Accepted, client: SlurmClient, own: int | None) -> Files | None:
    """The data plane of the job that hands over to this one, if it is on this node. `record` has the address now.

    If that job was killed and Slurm has left its data plane running, it is ended: it would keep the port, and send
    requests to replicas that are gone. What it has left on this node is removed, after its access log has been kept.
    One whose supervisor lives, as where this node's slurmd is dead, hands over by itself: see `Succession`.
    """
    if record.job_id in (None, own) or record.node != socket.gethostname():
        return None
    files = _files(record)
    if files is None:
        if Path(f"/proc/{record.pid}").exists():
            why = f"{record.run_directory} cannot be seen from this job, so its port is free only when it has ended"
            log.event(_LOG, logging.ERROR, "predecessor is not taken over", job=record.job_id, pid=record.pid, why=why)
        return None
    alive = Processes(files).alive()
    try:
        if record.job_id in {running.job_id for running in active_jobs(client, now.section.name, (now.slot,))}:
            return files if alive else None
    except SlurmError as error:
        log.event(_LOG, logging.ERROR, "predecessor's state unknown", job=record.job_id, why=str(error))
        return files if alive else None
    if _remove(files, now.paths):
        return None
    return files if alive else None


def remove_left(now: Accepted, active: Collection[int]) -> None:
    """Remove what this gateway's jobs have left on this node that were killed, all but the `active` ones."""
    for directory in gateway_paths.left(now.paths.private_name(now.section.name), active):
        try:
            _remove(Files(directory), now.paths)
        except OSError as error:  # of one of them, for which the succession must not wait
            log.event(_LOG, logging.ERROR, "not cleaned up", file=str(directory), why=error.strerror or str(error))


def _remove(files: Files, paths: GatewayPaths) -> bool:
    """End a data plane that nothing supervises, keep its log and remove its files. False if its supervisor lives.

    Raises `OSError`.
    """
    with suppress(FileNotFoundError), gateway_paths.supervised(files.directory) as left:
        if not left:
            return False
        found = Processes(files)
        if found.alive():
            log.event(_LOG, logging.INFO, "ending the data plane that a killed job has left", at=str(files.directory))
        found.stop(grace_s=0.0)
        gateway_paths.clean_up(files.directory, files.access_log, paths.access_log)
    return True  # also where it has been removed meanwhile


def _files(record: GatewayRecord) -> Files | None:
    """The files of a gateway on this node; None if they are gone, out of sight, or another user's.

    With Slurm's `job_container/tmpfs` each job has a /tmp of its own, where only its processes lead.
    """
    own_name = Path(record.run_directory)
    for directory in (own_name, Path(f"/proc/{record.pid}/root{own_name}")):
        try:
            if directory.is_dir() and directory.stat().st_uid == os.getuid():
                return Files(directory, own_name)
        except PermissionError:  # the pid is another user's by now
            continue
    return None


@dataclass(slots=True)
class Succession:
    """Keeps exactly one job in the queue that succeeds the job `own`, and releases it when the time limit is near.

    One that waits with other options than the services file has by now is replaced. One that Slurm has started because
    it takes `own` for ended is handed over to.
    """

    client: SlurmClient
    paths: GatewayPaths
    sbatch: Sequence[str]
    own: int | None
    handing_over: bool = False
    _successor: int | None = None
    _options: tuple[str, ...] = ()
    _replaced: list[int] = field(default_factory=list)
    _due_s: float = 0.0
    _retry_s: float = _RETRY_S
    _latest_s: float = math.inf

    def hand_over_now(self) -> None:
        """Do at the next check what is done when the time limit is near."""
        self._latest_s = self._due_s = 0.0
        self._retry_s = _RETRY_S

    def taken_over(self) -> bool:
        """Whether the released successor has a data plane that takes requests."""
        if not self.handing_over or self._successor is None:
            return False
        if self.paths.handover(self._successor).exists():
            return True
        # It removes the file once it has the address, which may be sooner than Slurm answers us.
        record = state.holder(self.paths)
        return record is not None and record.job_id == self._successor

    def coming(self) -> bool:
        """Whether a successor was released but does not take requests yet."""
        return self.handing_over and not self.taken_over()

    def check(self, now: Accepted) -> None:
        """Check the successor if it is time. Does nothing outside of a job."""
        if self.own is None or time.monotonic() < self._due_s or self.paths.closing.exists():
            return
        try:
            jobs = active_jobs(self.client, now.section.name, (now.slot,))
            known = {found.job_id: found.state for found in jobs}
            if self._successor is None or (self._successor not in known and self.own in known):
                self._successor = self._find(now, jobs, self.own)
            elif self._successor not in known:
                # Neither has our comment, so nor would another one be found: there would be one more every minute.
                why = f"comment is not {tag(now.section.name, now.slot)!r}, or it has ended"
                log.event(_LOG, logging.ERROR, "successor is not listed", job=self._successor, why=why)
            elif known[self._successor] == "PENDING" and not self.handing_over:
                self._renew(now, jobs, self._successor, self.own)
            self._replaced = [job_id for job_id in self._replaced if job_id in known]
            cancel(self.client, self._replaced)
            remove_left(now, (*known, self.own))
            left_s = min(self._latest_s, handover_in_s(jobs, self.own, now.section.job.handover_s, time.time()))
            # As where the node's slurmd is dead: nothing ends us, and the successor would never get the lock.
            is_over = self.own not in known and known.get(self._successor) == "RUNNING"
            if (left_s <= 0 or is_over) and not self.handing_over:
                if known.get(self._successor) != "RUNNING":
                    release(self.client, self._successor)
                self.handing_over = True
                log.event(_LOG, logging.INFO, "handing over", successor=self._successor)
            self._retry_s = _RETRY_S
            self._due_s = time.monotonic() + (_RETRY_S if self.handing_over else min(_CHECK_S, left_s))
        except SlurmError as error:
            # Counted from the answer: while slurmctld hangs nothing else is looked at, such as HAProxy.
            self._due_s = time.monotonic() + self._retry_s
            hangs = isinstance(error, SlurmUnreachableError) and not self.handing_over
            self._retry_s = min(_LONGEST_RETRY_S, 2 * self._retry_s) if hangs else _RETRY_S
            log.event(_LOG, logging.ERROR, "no successor yet, will try again", why=str(error))

    def _find(self, now: Accepted, jobs: Sequence[SlurmJob], own: int) -> int:
        """The pending job that succeeds this one; it is submitted if there is none."""
        others = (own, *self._replaced)
        waiting = [found.job_id for found in jobs if found.state == "PENDING" and found.job_id not in others]
        if not waiting:
            self.handing_over = False  # a successor released before is gone: the new one must be released as well
            waiting = [submit(self.client, now, self.sbatch, after=own)]
            self.paths.handover(waiting[0]).unlink(missing_ok=True)  # of a job that died, before ids began anew
            log.event(_LOG, logging.INFO, "successor submitted", job=waiting[0])
        self._options = options(now, self.sbatch, own)
        return waiting[0]

    def _renew(self, now: Accepted, jobs: Sequence[SlurmJob], successor: int, own: int) -> None:
        """Replace the successor if a reload has changed the options of the gateway's jobs."""
        if self._options == options(now, self.sbatch, own):
            return
        self._replaced.append(successor)
        try:
            self._successor = self._find(now, jobs, own)
        except SlurmError as error:  # such as a partition that does not exist: the old one can take over
            self._replaced.remove(successor)
            log.event(_LOG, logging.ERROR, "successor keeps its old options", job=successor, why=str(error))
