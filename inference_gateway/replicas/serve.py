"""Runs a replica's server inside its job: finds a port, tells the gateway, and ends the server gently.

On SIGUSR1 (the time limit is near) or SIGTERM it first tells the gateway, waits until that sends nothing new, and then
passes SIGTERM on: servers finish their requests on that signal and exit. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from inference_gateway.replicas import registration
from inference_gateway.replicas.ports import address_towards, reserve
from inference_gateway.replicas.registration import Registration


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the server's exit status (128 + n when signal n ended it)."""
    options = _parser().parse_args(arguments)
    directory: Path = options.directory
    with reserve() as holder:
        job = os.environ
        told = Registration(
            address_towards(options.gateway),
            holder.getsockname()[1],
            int(job.get("SLURM_JOB_ID", "0")),
            int(job.get("SLURM_RESTART_COUNT", "0")),
        )
        placeholders = {
            "{port}": str(told.port),
            "{host}": told.host,
            "{key_file}": str(options.key_file),
            "{replica}": directory.name,
        }
        command = filled(options.command[1:] if options.command[:1] == ["--"] else options.command, placeholders)
        environment = {**job, options.key_variable: options.key_file.read_text(encoding="ascii").strip()}
        registration.register(directory, told)
        return _run(command, environment, directory, options.grace_s)


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words with placeholders replaced; any other braces stay."""
    done = list(words)
    for placeholder, value in values.items():
        done = [word.replace(placeholder, value) for word in done]
    return done


def _run(command: Sequence[str], environment: Mapping[str, str], directory: Path, grace_s: float) -> int:
    told = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        told.set()

    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        server = subprocess.Popen(command, env=dict(environment))
    except OSError as error:
        sys.stderr.write(f"replica: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    threading.Thread(target=_end_gently, args=(told, server, directory, grace_s), daemon=True).start()
    status = server.wait()
    return status if status >= 0 else 128 - status


def _end_gently(told: threading.Event, server: subprocess.Popen[bytes], directory: Path, grace_s: float) -> None:
    told.wait()
    try:
        registration.leave(directory)
    except OSError as error:  # the disk is full: the gateway will see the server go, and retries what it refuses
        sys.stderr.write(f"replica: cannot tell the gateway: {error.strerror}\n")
    threading.Event().wait(grace_s)
    server.terminate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="replica", description=__doc__, allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True, help="the replica's directory")
    parser.add_argument("--gateway", required=True, help="host of the gateway: tells which network to listen on")
    parser.add_argument("--key-file", type=Path, required=True, help="file with the API key that requests carry")
    parser.add_argument("--key-variable", required=True, help="environment variable for the API key")
    parser.add_argument("--grace-s", type=float, default=3.0, help="time for the gateway to send nothing new")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main())
