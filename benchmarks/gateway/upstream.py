"""What stands behind the proxies that are measured: an HAProxy that answers every request itself."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference_gateway.model import Endpoint
from inference_gateway.replicas.identity import Authority
from slurm_plugin.devcluster.machine import reserved

REPLY = json.dumps({"object": "chat.completion", "choices": [{"message": {"content": "x" * 930}}]})
"""About 1 KB."""


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody else gets; servers that bind with SO_REUSEADDR share it."""
    with reserved(1) as (port,):
        yield port


@contextmanager
def one_cpu_less() -> Iterator[int]:
    """Keep this process and its children off a CPU, which is the value. Raises `RuntimeError` if there is but one."""
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        raise RuntimeError("one CPU is not enough: the proxies need one of their own")
    first = min(cpus)
    os.sched_setaffinity(0, cpus - {first})
    try:
        yield first
    finally:
        os.sched_setaffinity(0, cpus)


@contextmanager
def haproxy(directory: Path, name: str, sections: str) -> Iterator[int]:
    """An HAProxy with one thread and the given sections; its process id."""
    path = directory / f"{name}.cfg"
    timeouts = "  timeout connect 3s\n  timeout client 60s\n  timeout server 60s\n"
    path.write_text(f"global\n  nbthread 1\n  maxconn 4000\ndefaults\n  mode http\n{timeouts}{sections}")
    child = subprocess.Popen(["haproxy", "-db", "-f", str(path)], stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    if child.poll() is not None:
        raise RuntimeError(f"haproxy does not start with {path}")
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


@contextmanager
def upstream(directory: Path, authority: Authority | None = None) -> Iterator[Endpoint]:
    """A server that gives `REPLY` to everything; with an authority it proves to be a replica and asks who is there."""
    with free_port() as port:
        endpoint = Endpoint(f"r{port}", "127.0.0.1", port, 1000)
        proof = f" {_proof(directory, authority, endpoint.name)}" if authority else ""
        answer = f"http-request return status 200 content-type application/json string '{REPLY}'"
        with haproxy(directory, "upstream", f"frontend f\n  bind 127.0.0.1:{port}{proof}\n  {answer}\n"):
            yield endpoint


def _proof(directory: Path, authority: Authority, name: str) -> str:
    identity, trusted = directory / "identity.pem", directory / "authority.pem"
    identity.write_text(authority.replica(name))
    trusted.write_text(authority.trust.authority)
    return f"ssl crt {identity} ca-file {trusted} verify required"
