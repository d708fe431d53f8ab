"""The gateway's Slurm jobs and their succession.

A job takes over its predecessor's data plane and keeps a successor in the queue.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from explsched import interpreter, log
from explsched.errors import SlurmError, SlurmUnreachableError
from inference_gateway import gateway_paths
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.control.slurm_sync import submit_soonest
from inference_gateway.control.state import GatewayRecord
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import Processes
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import SLOTS, GatewayPaths
from sbatch_templates import shell_environment
from slurm_plugin.client.changes import CancelJob, ClearDependency
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import SlurmJob

_LOG = logging.getLogger("explsched.gateway")
_OURS = "igwjob:"
_ACTIVE = frozenset({"PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "REQUEUED"})


def tag(gateway: str, slot: int = 1) -> str:
    """The comment of a gateway's own jobs; `slot` is 2 for the second of two gateways."""
    return f"{_OURS}{gateway}" if slot == 1 else f"{_OURS}{gateway}:{slot}"


def own_job_id() -> int | None:
    """The Slurm job in which this process runs; None outside of a job."""
    text = os.environ.get("SLURM_JOB_ID", "")
    return int(text) if text.isdigit() else None


def active_jobs(client: SlurmClient, gateway: str, slots: Sequence[int] = SLOTS) -> tuple[SlurmJob, ...]:
    """The gateway's own pending and running jobs, by default of both where there are two. Raises `SlurmError`."""
    return tuple(job for job in listed_jobs(client, gateway, slots) if job.state in _ACTIVE)


def listed_jobs(client: SlurmClient, gateway: str, slots: Sequence[int] = SLOTS) -> tuple[SlurmJob, ...]:
    """As `active_jobs`, and those that are held or have ended lately. Raises `SlurmError`."""
    tags = {tag(gateway, slot) for slot in slots}
    return tuple(job for job in client.tagged_jobs(tag(gateway)) if job.comment in tags)


def options(now: Accepted, extra: Sequence[str], after: int | None) -> tuple[str, ...]:
    """The sbatch options of a gateway job. `after`: the job that it succeeds."""
    section, root = now.section, now.paths.root
    job = section.job
    second = job.second if now.slot > 1 else None
    given = {
        "job-name": f"gateway-{section.name}",
        "comment": tag(section.name, now.slot),
        "output": str(root / "gateway.log"),
        "nodelist": job.node if second is None else second.node,
        "open-mode": "append",
        "chdir": str(root),
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(job.cpus),
        "mem": job.memory,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "dependency": "" if after is None else f"afterany:{after}",
    }
    return (*(f"--{key}={value}" for key, value in given.items() if value), "--no-requeue", *extra)


def script(now: Accepted, extra: Sequence[str], after: int | None = None) -> str:
    """The batch script. `extra` are sbatch options, which the successor also gets. `after` as in `options`."""
    text = (resources.files("sbatch_templates") / "gateway.sh.j2").read_text(encoding="utf-8")
    files = ["--services", str(now.services_path), "--accepted", str(now.paths.accepted)]
    files += ["--slot", str(now.slot)] if now.slot > 1 else []
    files += ["--after", str(after)] if after is not None else []
    command = [
        *interpreter.of_module("inference_gateway.supervisor.loop"),
        *files,
        *(f"--sbatch={option}" for option in extra),
    ]
    return shell_environment().from_string(text).render(command=command).strip("\n") + "\n"


def submit(client: SlurmClient, now: Accepted, extra: Sequence[str], after: int | None = None) -> int:
    """Submit a gateway job; returns its id. Raises `SlurmError`."""
    return client.submit(script(now, extra, after), options(now, extra, after))


_AGAIN_S = 60.0
_LATEST_AGAIN_S = 600.0


def submit_again(client: SlurmClient, now: Accepted, extra: Sequence[str], own: int) -> None:
    """Have a job in the queue that serves instead of `own`, which cannot serve on this node. Raises `SlurmError`.

    It avoids this node where Slurm can start it as soon on another, and waits the longer the longer nobody has served.
    """
    if any(job.state == "PENDING" and job.job_id != own for job in active_jobs(client, now.section.name, (now.slot,))):
        return
    shown = state.read(now.paths.status, Report)
    wait_s = min(_LATEST_AGAIN_S, max(_AGAIN_S, 0.0 if shown is None else time.time() - shown.time_s))
    later = (f"--begin=now+{wait_s:.0f}", *extra)
    choices = [options(now, later, None)]
    node = os.environ.get("SLURMD_NODENAME")
    if node and not any(option.startswith("--nodelist=") for option in choices[0]):
        choices.insert(0, options(now, (f"--exclude={node}", *later), None))
    new = submit_soonest(client, script(now, extra, own), choices)
    log.event(_LOG, logging.ERROR, "cannot serve on this node, another job will try", job=new, wait_s=round(wait_s))


def start(client: SlurmClient, now: Accepted, extra: Sequence[str]) -> tuple[int, ...]:
    """Submit the first job of each gateway; returns their ids. Raises `SlurmError`, `GatewayError` if one exists."""
    with _starting(now):
        _refuse_another(now, active_jobs(client, now.section.name))
        state.begin_anew(now.paths)
        now.keep()  # in force from now on: what is edited while the first job waits is a change
        slots = SLOTS if now.section.job.second is not None else SLOTS[:1]
        submitted: list[int] = []
        try:
            submitted.extend(submit(client, replace(now, slot=slot), extra) for slot in slots)
        except SlurmError:
            cancel(client, submitted)  # else the first would serve alone, and `up` be refused once the cause is mended
            raise
        return tuple(submitted)


def begin_here(client: SlurmClient, now: Accepted) -> None:
    """Prepare a gateway that this process runs. Raises `SlurmError`, `GatewayError` if it has a job already.

    A job that waits for another one does not count: here it can only be the successor of such a process before.
    """
    with _starting(now):
        found = active_jobs(client, now.section.name)
        _refuse_another(now, [job for job in found if job.state != "PENDING" or job.eligible_s is not None])
        state.begin_anew(now.paths)


@contextmanager
def _starting(now: Accepted) -> Iterator[None]:
    """Keep other commands from starting a gateway of this name, or ending it. Raises `GatewayError` if one is at it."""
    with state.locked(now.paths.start_lock) as ours:
        if not ours:
            raise GatewayError(f"gateway {now.section.name} is being started or ended by another command")
        yield


def _refuse_another(now: Accepted, found: Sequence[SlurmJob]) -> None:
    if found:
        raise GatewayError(f"gateway {now.section.name} is up or starting already: job {found[0].job_id}")


def handover_in_s(found: Sequence[SlurmJob], own: int | None, notice_s: float, now_s: float) -> float:
    """Seconds until the job `own` is to hand over: `notice_s` before its time limit, or at half of a short limit."""
    record = next((job for job in found if job.job_id == own), None)
    if record is None or record.start_s is None or record.time_limit_s is None:
        return math.inf
    return record.start_s + record.suspended_s + record.time_limit_s - min(notice_s, record.time_limit_s / 2) - now_s


def release(client: SlurmClient, job_id: int) -> None:
    """Let a successor start now, while the job that it succeeds still runs. Raises `SlurmError`, also on refusal."""
    refused = client.apply([ClearDependency(job_id)])
    if refused:
        raise SlurmError(refused[0].message)


def cancel(client: SlurmClient, job_ids: Sequence[int]) -> None:
    """Cancel jobs. Raises `SlurmError`."""
    if job_ids:
        client.apply([CancelJob(job_id) for job_id in job_ids])


_CHECK_S = 60.0
"""Time between two checks of the successor job."""

_RETRY_S = 5.0
_LONGEST_RETRY_S = 30.0
"""Until Slurm is asked again, from first to last, while it does not answer."""


def predecessor(record: GatewayRecord, now: Accepted, client: SlurmClient, own: int | None) -> Files | None:
    """The data plane of the job that hands over to this one, if it is on this node. `record` has the address now.

    If that job was killed and Slurm has left its data plane running, it is ended: it would keep the port, and send
    requests to replicas that are gone. What it has left on this node is removed, after its access log has been kept.
    """
    if record.job_id in (None, own) or record.node != socket.gethostname():
        return None
    files = _files(record)
    if files is None:
        if Path(f"/proc/{record.pid}").exists():
            why = f"{record.run_directory} cannot be seen from this job, so its port is free only when it has ended"
            log.event(_LOG, logging.ERROR, "predecessor is not taken over", job=record.job_id, pid=record.pid, why=why)
        return None
    found = Processes(files)
    alive = found.alive()
    try:
        if record.job_id in {running.job_id for running in active_jobs(client, now.section.name, (now.slot,))}:
            return files if alive else None
    except SlurmError as error:
        log.event(_LOG, logging.ERROR, "predecessor's state unknown", job=record.job_id, why=str(error))
        return files if alive else None
    if alive:
        log.event(_LOG, logging.INFO, "ending the data plane that a killed job has left", job=record.job_id)
        found.stop(grace_s=0.0)
    if not Path(f"/proc/{record.pid}").exists():  # else its supervisor, or another process, may still write there
        gateway_paths.clean_up(files.directory, files.access_log, now.paths.access_log)
    return None


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

    One that waits with other options than the services file has by now is replaced.
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
        return record is not None and record.job_id not in (None, self.own)

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
            left_s = min(self._latest_s, handover_in_s(jobs, self.own, now.section.job.handover_s, time.time()))
            if left_s <= 0 and not self.handing_over:
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
