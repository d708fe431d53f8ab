"""The job of one replica: sbatch's options and the script."""

from __future__ import annotations

import secrets
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2

from explsched.job_options.comment import write as job_word
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas.identity import Authority
from inference_gateway.replicas.serve import AUTHORITY, IDENTITY
from inference_gateway.services import KernelSection, ReplicaSection, ServiceSection
from sbatch_templates import shell_environment

NOTICE_S = 120
"""A replica is signalled this long before its time limit."""

GRACE_S = 3.0
"""A replica that was told to end goes on serving for this long, until the gateway sends it nothing new."""


@dataclass(frozen=True, slots=True)
class Tag:
    """The first word of the comment of a replica's job, `igw:GATEWAY:SERVICE:GENERATION`: known after a restart."""

    gateway: str
    service: str
    generation: str

    def __str__(self) -> str:
        return f"{prefix(self.gateway)}{self.service}:{self.generation}"


def prefix(gateway: str) -> str:
    """What the comments of all replica jobs of a gateway begin with."""
    return f"igw:{gateway}:"


def parse_tag(comment: str) -> Tag | None:
    """The tag in a job's comment; None for a job that is no replica."""
    mark, *fields = comment.partition(" ")[0].split(":")
    return Tag(*fields) if mark == "igw" and len(fields) == 3 else None


def new_name(service: str) -> str:
    """A name for a new replica, unique for all practical purposes."""
    return f"{service}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Qos:
    """The QOS of a replica (empty: the user's own), and whether Slurm may requeue it."""

    name: str
    requeue: bool


def qos(replica: ReplicaSection, *, burst: bool) -> tuple[Qos, ...]:
    """The QOS that a replica may have, the preferred one first. One above the minimum has a burst QOS if there is one.

    There a preempted one waits in the queue for another chance; any other that ends is replaced by a new job.
    """
    is_burst = burst and bool(replica.burst_qos)
    names = (replica.burst_qos if is_burst else replica.qos).split(",")
    return tuple(Qos(name, requeue=is_burst) for name in names)


def options(service: ServiceSection, tag: Tag, name: str, paths: GatewayPaths, qos: Qos) -> tuple[str, ...]:
    """Options for sbatch."""
    replica = service.replica
    given = {
        "job-name": name,
        "comment": " ".join(filter(None, (str(tag), _sharing(replica.kernel)))),
        "output": str(paths.replica(name) / "log"),
        "open-mode": "append",
        "chdir": str(paths.replica(name)),
        "signal": f"B:USR1@{NOTICE_S}",
        "nodes": str(replica.nodes),
        "ntasks": str(replica.nodes),
        "ntasks-per-node": "1" if replica.nodes > 1 else "",
        "cpus-per-task": str(replica.cpus),
        "gres": ",".join(part for part in (f"gpu:{replica.gpus}" if replica.gpus else "", replica.gres) if part),
        "mem": replica.memory,
        "time": replica.time,
        "partition": replica.partition,
        "account": replica.account,
        "qos": qos.name,
    }
    requeue = "--requeue" if qos.requeue else "--no-requeue"
    return (*(f"--{key}={value}" for key, value in given.items() if value), requeue, *replica.options)


def _sharing(kernel: KernelSection) -> str:
    """What a scheduler that places by requests and limits wants to know, as every job says it; empty for nothing."""
    said = {"share": kernel.share, "request": kernel.request, "limit": kernel.limit}
    return job_word({name: str(value) for name, value in said.items() if value is not None})


def script(service: ServiceSection, name: str, paths: GatewayPaths, gateway_host: str) -> str:
    """The batch script. `gateway_host` tells the replica on which network the gateway is."""
    replica = service.replica
    rendered = _template().render(
        python=sys.executable,
        directory=paths.replica(name),
        gateway=gateway_host,
        key_variable=replica.key_variable,
        grace_s=GRACE_S,
        nodes=replica.nodes,
        worker=shlex.join([*kernel_share(replica.kernel), *shlex.split(replica.worker_command)])
        if replica.worker_command
        else "",
        stage=[] if replica.stage is None else [str(replica.stage.source), str(replica.stage.target)],
        setup=replica.setup.strip("\n"),
        command=[*kernel_share(replica.kernel), *shlex.split(replica.command)],
    )
    return rendered.strip("\n") + "\n"


@cache
def _template() -> jinja2.Template:
    """Compiled once: for a thousand services that takes seconds."""
    text = (resources.files("sbatch_templates") / "replica.sh.j2").read_text(encoding="utf-8")
    return shell_environment().from_string(text)


def kernel_share(kernel: KernelSection) -> list[str]:
    """The words before a replica's command that give it its share of a GPU's kernels."""
    given = {"share": kernel.share, "request": kernel.request, "limit": kernel.limit}
    options = [f"--{key}={value}" for key, value in given.items() if value is not None]
    return [str(Path(sys.executable).with_name("sxrun")), *options, "--"] if options else []


def prepare(name: str, paths: GatewayPaths, text: str, authority: Authority) -> None:
    """Make the replica's directory: its identity, and the script for whoever looks. Raises `OSError`."""
    directory = paths.replica(name)
    directory.mkdir(mode=0o700)
    (directory / "script.sh").write_text(text, encoding="utf-8")
    (directory / AUTHORITY).write_text(authority.trust.authority, encoding="ascii")
    (directory / IDENTITY).touch(mode=0o600)
    (directory / IDENTITY).write_text(authority.replica(name), encoding="ascii")
