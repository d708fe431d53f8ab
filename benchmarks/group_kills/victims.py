"""Who can be killed, and how."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from slurm_plugin.devcluster.sharing import Site

KINDS = ("client", "sxrun", "requeue", "manager", "daemon")
_WORDS = {"client": "share_client", "sxrun": "wrappers.sxrun", "manager": "sexplkmd"}

_PROGRAM_WORDS = 4  # as in `python -P -m wrappers.sxrun`


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill that was carried out; `job_id` is the member it was aimed at, None for a daemon of ours."""

    kind: str
    job_id: int | None = None


def strike(site: Site, kind: str, members: Sequence[int], chance: Random) -> Kill | None:
    """Kill a process of a random member, a random manager, or have a member requeued; None if there is none."""
    job_id = chance.choice(members) if members else None
    if kind == "requeue" and job_id is not None:
        argv = ["scontrol", "requeue", str(job_id)]
        done = subprocess.run(argv, env=dict(site.environment), capture_output=True, check=False)
        return Kill(kind, job_id) if done.returncode == 0 else None
    found = list(_processes(site, _WORDS[kind], None if kind == "manager" else job_id)) if kind in _WORDS else []
    if not found:
        return None
    with suppress(ProcessLookupError):
        os.kill(chance.choice(found), signal.SIGKILL)
        return Kill(kind, None if kind == "manager" else job_id)
    return None


def managers(site: Site) -> int:
    """How many kernel managers run on the cluster."""
    return len(list(_processes(site, _WORDS["manager"], None)))


def _processes(site: Site, word: str, job_id: int | None) -> Iterator[int]:
    """Processes of the cluster's jobs with this word in their command line, or of one job."""
    marks = [f"SLURM_CLUSTER_NAME={site.cluster.layout.cluster_name}".encode()]
    marks += [f"SLURM_JOB_ID={job_id}".encode()] if job_id is not None else []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            variables = (path / "environ").read_bytes().split(b"\0")
            if any(part.endswith(word.encode()) for part in words[:_PROGRAM_WORDS]) and all(
                mark in variables for mark in marks
            ):
                yield int(path.name)
