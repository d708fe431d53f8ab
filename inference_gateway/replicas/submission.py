"""The Slurm job of one replica: its sbatch options and its script."""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2

from explsched import interpreter
from explsched.job_options.comment import write as job_word
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas import reports
from inference_gateway.replicas.identity import Authority
from inference_gateway.replicas.serve import AUTHORITY, IDENTITY
from inference_gateway.sections import KernelSection, ReplicaSection, ServiceSection
from sbatch_templates import shell_environment

NOTICE_S = 120
"""Seconds before its time limit at which a replica is signalled."""

EARLIEST_NOTICE_S = NOTICE_S + 60
"""Slurm may send the signal up to a minute earlier than it is asked to."""

GRACE_S = 3.0
"""Seconds for which a replica continues to serve after its end signal, until the gateway sends it nothing new."""


@dataclass(frozen=True, slots=True)
class Tag:
    """First word of the comment of a replica's job, `igw:GATEWAY:SERVICE:GENERATION`, by which it is found again."""

    gateway: str
    service: str
    generation: str

    def __str__(self) -> str:
        return f"{prefix(self.gateway)}{self.service}:{self.generation}"


def prefix(gateway: str) -> str:
    """The prefix of the comments of all replica jobs of a gateway."""
    return f"igw:{gateway}:"


def parse_tag(comment: str) -> Tag | None:
    """The tag in a job's comment; None if the job is not a replica."""
    mark, *fields = comment.partition(" ")[0].split(":")
    return Tag(*fields) if mark == "igw" and len(fields) == 3 else None


def new_name(service: str) -> str:
    """A name for a new replica, unique for all practical purposes."""
    return f"{service}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Qos:
    """The QOS of a replica (empty: the user's default), and whether Slurm may requeue it."""

    name: str
    requeue: bool


def qos(replica: ReplicaSection, *, burst: bool) -> tuple[Qos, ...]:
    """The QOS that a replica may use, the preferred one first. Replicas above the minimum use the burst QOS if set.

    A preempted burst replica is requeued and waits; any other replica that ends is replaced by a new job.
    """
    is_burst = burst and bool(replica.burst_qos)
    names = (replica.burst_qos if is_burst else replica.qos).split(",")
    return tuple(Qos(name, requeue=is_burst) for name in names)


def options(service: ServiceSection, tag: Tag, name: str, paths: GatewayPaths, qos: Qos) -> tuple[str, ...]:
    """The sbatch options of a replica's job."""
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
    """The replica's share of a GPU as a job comment, for schedulers that place jobs by it; empty if it has none."""
    given = {"share": kernel.share, "request": kernel.request, "limit": kernel.limit}
    return job_word({name: str(value) for name, value in given.items() if value is not None})


def script(service: ServiceSection, name: str, paths: GatewayPaths, gateway_host: str) -> str:
    """The batch script. From `gateway_host` the replica learns on which network the gateway is."""
    replica = service.replica
    rendered = _template().render(
        program=interpreter.of_module("inference_gateway.replicas.serve"),
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
    """The compiled template; compiling it once for each of a thousand services would take seconds."""
    text = (resources.files("sbatch_templates") / "replica.sh.j2").read_text(encoding="utf-8")
    return shell_environment().from_string(text)


def kernel_share(kernel: KernelSection) -> list[str]:
    """The `sxrun` prefix that runs a command with the replica's share of a GPU; empty if it has none."""
    given = {"share": kernel.share, "request": kernel.request, "limit": kernel.limit}
    options = [f"--{key}={value}" for key, value in given.items() if value is not None]
    return [str(Path(sys.executable).with_name("sxrun")), *options, "--"] if options else []


def prepare(name: str, paths: GatewayPaths, text: str, authority: Authority) -> None:
    """Make the replica's directory with its identity and, for reference, its script. Raises `OSError`; none is left."""
    directory = paths.replica(name)
    directory.mkdir(mode=0o700)
    try:
        reports.prepare(directory)
        (directory / "script.sh").write_text(text, encoding="utf-8")
        (directory / AUTHORITY).write_text(authority.trust.authority, encoding="ascii")
        (directory / IDENTITY).touch(mode=0o600)
        (directory / IDENTITY).write_text(authority.replica(name), encoding="ascii")
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)  # of those of ended replicas, with their logs, so many are kept
        raise
