"""A replica as it runs in a job: the wrapper with its relay, and a tiny model server behind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import Endpoint
from inference_gateway.replicas import reports, submission
from inference_gateway.replicas.identity import Authority
from tests.inference_gateway.rig import wait_until


@dataclass(slots=True)
class WrappedReplica:
    """Its process, and where it has registered."""

    endpoint: Endpoint
    process: subprocess.Popen[bytes]
    key_file: Path


@contextmanager
def wrapped(paths: GatewayPaths, name: str, *server_options: str) -> Iterator[WrappedReplica]:
    """A replica of the gateway whose files are in `paths`; it registers before it is ready."""
    submission.prepare(name, paths, "", Authority.of(paths.identity))
    directory = paths.replica(name)
    program = [sys.executable, "-m", "inference_gateway.replicas.serve", "--directory", str(directory)]
    options = ["--gateway", "127.0.0.1", "--key-variable", "EXPLSCHED_REPLICA_KEY", "--grace-s", "0", "--"]
    server = [
        sys.executable,
        "-m",
        "inference_gateway.model_server",
        "--port",
        "{port}",
        "--name",
        "{replica}",
    ]
    process = subprocess.Popen([*program, *options, *server, *server_options], start_new_session=True)
    try:
        wait_until(lambda: reports.registered(directory))
        told = reports.registered(directory)
        assert told is not None
        yield WrappedReplica(Endpoint(name, told.host, told.port, 8), process, directory / "key")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
