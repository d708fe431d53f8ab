"""The gateway's own Slurm job, and the successor that waits to take its place.

A gateway job that is up submits its successor with `--dependency=afterany` on itself: whatever ends it (time limit,
node failure, SIGKILL), Slurm starts the successor, without the two minutes that it makes a requeued job wait. Before
the time limit the dependency is lifted, so that the successor serves before the old job stops.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from inference_gateway.replicas.places import Places
from inference_gateway.sections import GatewaySection
from sbatch_templates import shell
from slurm_plugin.client.changes import CancelJob, ClearDependency
from slurm_plugin.client.errors import SlurmError
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import SlurmJob

_OURS = "igwjob:"
ACTIVE = frozenset({"PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "REQUEUED"})


def tag(gateway: str) -> str:
    """The comment of the jobs of a gateway itself."""
    return f"{_OURS}{gateway}"


def own_job_id() -> int | None:
    """The Slurm job this process runs in; None outside of one."""
    text = os.environ.get("SLURM_JOB_ID", "")
    return int(text) if text.isdigit() else None


def jobs(client: SlurmClient, gateway: str) -> tuple[SlurmJob, ...]:
    """The gateway's own jobs that wait or run. Raises `SlurmError`."""
    found = (job for job in client.tagged_jobs(tag(gateway)) if job.comment == tag(gateway))
    return tuple(job for job in found if job.state in ACTIVE)


def options(section: GatewaySection, places: Places, extra: Sequence[str], after: int | None) -> tuple[str, ...]:
    """Options for sbatch. `after`: the job that this one succeeds."""
    job = section.job
    given = {
        "job-name": f"gateway-{section.name}",
        "comment": tag(section.name),
        "output": str(places.root / "gateway.log"),
        "open-mode": "append",
        "chdir": str(places.root),
        "signal": f"B:USR1@{job.handover_s}",
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


def script(services_path: Path, places: Places, extra: Sequence[str]) -> str:
    """The batch script. `extra` are sbatch options that the successor is to have, too."""
    text = (resources.files("sbatch_templates") / "gateway.sh.j2").read_text(encoding="utf-8")
    program = [sys.executable, "-m", "inference_gateway.supervisor"]
    files = ["--services", str(services_path), "--accepted", str(places.accepted)]
    command = [*program, *files, *(f"--sbatch={option}" for option in extra)]
    return shell.environment().from_string(text).render(command=command).strip("\n") + "\n"


def submit(
    client: SlurmClient, section: GatewaySection, services_path: Path, extra: Sequence[str], after: int | None = None
) -> int:
    """Submit a gateway job; returns its id. Raises `SlurmError`."""
    places = Places(section.state_directory)
    return client.submit(script(services_path, places, extra), options(section, places, extra, after))


def handover_in_s(found: Sequence[SlurmJob], own: int | None, notice_s: float, now_s: float) -> float:
    """Seconds until the job `own` is to hand over: `notice_s` before its end, half of its time for a short one."""
    record = next((job for job in found if job.job_id == own), None)
    if record is None or record.start_s is None or record.time_limit_s is None:
        return math.inf
    return record.start_s + record.time_limit_s - min(notice_s, record.time_limit_s / 2) - now_s


def release(client: SlurmClient, job_id: int) -> None:
    """Let a successor start now, beside the job it succeeds. Raises `SlurmError`, also if Slurm refuses."""
    refused = client.apply([ClearDependency(job_id)])
    if refused:
        raise SlurmError(refused[0].message)


def cancel(client: SlurmClient, job_ids: Sequence[int]) -> None:
    """Cancel jobs. Raises `SlurmError`."""
    if job_ids:
        client.apply([CancelJob(job_id) for job_id in job_ids])
