"""The gateway's Slurm jobs: how they are found, submitted, released and cancelled."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources

from explsched import interpreter, log
from explsched.errors import SlurmError
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.control.slurm_sync import submit_soonest
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import SLOTS
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
