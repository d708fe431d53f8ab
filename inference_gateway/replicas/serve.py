"""Runs a replica's server inside its job: finds its ports, tells the gateway, and ends the server gently.

The gateway reaches the server through a relay alone (see `relay`). On SIGUSR1 (the time limit is near) or SIGTERM the
gateway is told first; when it sends nothing new SIGTERM is passed on: servers finish their requests on that signal and
exit. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import resource
import secrets
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_gateway.replicas import reports
from inference_gateway.replicas.ports import address_towards, owned, reserve, taken
from inference_gateway.replicas.relay import Relay, StrangerError, server_context
from inference_gateway.replicas.reports import Registration, UsageCounter

AUTHORITY = "authority.pem"
IDENTITY = "identity.pem"
"""Files in the replica's directory: whom it trusts, and its own certificate with key."""
KEY = "key"
"""The key that the server asks for, in the same directory. The wrapper makes another one at each start."""

_LOOK_S = 2.0
_USAGE_S = 2.0
_LAST_ANSWERS_S = 10.0
"""What the server has written before it ended is on its way this long at most."""
_PORT_TAKEN = 1
_PR_SET_PDEATHSIG = 1
_TERM_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """What is run: the words of its command, with placeholders, and the variable for its key."""

    command: tuple[str, ...]
    key_variable: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the server's exit status (128 + n when signal n ended it)."""
    options = _parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    server = Server(tuple(command), options.key_variable)
    return asyncio.run(_run(server, options.directory, options.gateway, options.grace_s))


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words with placeholders replaced; any other braces stay."""
    done = list(words)
    for placeholder, value in values.items():
        done = [word.replace(placeholder, value) for word in done]
    return done


async def _run(server: Server, directory: Path, gateway: str, grace_s: float) -> int:
    told = asyncio.Event()
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # the relay has two for each request
    host = address_towards(gateway)
    key = secrets.token_urlsafe(32)
    with reserve() as holder, owned(host) as listener:
        port = int(holder.getsockname()[1])
        relay = Relay(port, key, taken)
        relay.start(listener, server_context(directory / IDENTITY, directory / AUTHORITY))
        place = Registration(host, listener.getsockname()[1], *_job())
        reports.register(directory, place)
        try:
            process = await _started(server, directory, port, key)
        except OSError as error:
            sys.stderr.write(f"replica: {server.command[0]}: {error.strerror}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
        ending = asyncio.create_task(_end_gently(told, process, directory, grace_s))
        watching = asyncio.create_task(_until_port_taken(relay))
        counting = asyncio.create_task(_report_usage(relay.usage, directory))
        waiting = asyncio.create_task(process.wait())
        await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
        port_taken = watching.done() and not waiting.done()
        if port_taken:
            await _give_up(process, directory, watching.result())
        status = await waiting
        for task in (ending, watching, counting):
            task.cancel()
        await relay.end(within_s=_LAST_ANSWERS_S)
        _write_usage(relay.usage, directory)
    if port_taken:
        return _PORT_TAKEN
    return status if status >= 0 else 128 - status


def _job() -> tuple[int, int]:
    """The job's id and how often it was requeued."""
    return int(os.environ.get("SLURM_JOB_ID", "0")), int(os.environ.get("SLURM_RESTART_COUNT", "0"))


async def _started(server: Server, directory: Path, port: int, key: str) -> Process:
    """The server's process. Raises `OSError`."""
    handle = os.open(directory / KEY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(key + "\n")
    placeholders = {
        "{port}": str(port),
        "{host}": "127.0.0.1",
        "{key_file}": str(directory / KEY),
        "{replica}": directory.name,
    }
    environment = {**os.environ, server.key_variable: key}
    # A session of its own: Slurm signals the wrapper's processes, and the gateway is to be told before the server is.
    return await asyncio.create_subprocess_exec(
        *filled(server.command, placeholders), env=environment, start_new_session=True, preexec_fn=_end_with_parent
    )


def _end_with_parent() -> None:
    """Let Linux end this process when the wrapper has been killed: nobody would find it, and it keeps its GPUs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def _end_gently(told: asyncio.Event, process: Process, directory: Path, grace_s: float) -> None:
    await told.wait()
    _leave(directory)
    await asyncio.sleep(grace_s)
    process.terminate()


async def _until_port_taken(relay: Relay) -> str:
    """Look again and again, before the server listens and while it does; what is wrong once its port is not its own."""
    while True:
        try:
            await relay.check()
        except (StrangerError, OSError) as error:
            return str(error)
        await asyncio.sleep(_LOOK_S)


async def _report_usage(usage: UsageCounter, directory: Path) -> None:
    while True:
        await asyncio.sleep(_USAGE_S)
        _write_usage(usage, directory)


def _write_usage(usage: UsageCounter, directory: Path) -> None:
    try:
        usage.write(directory)
    except OSError as error:  # the disk is full: the sums only grow, so the next report has this one, too
        sys.stderr.write(f"replica: tokens not reported: {error.strerror}\n")


async def _give_up(process: Process, directory: Path, why: str) -> None:
    """End a server whose port is another's: the gateway will start a replica on another port."""
    sys.stderr.write(f"replica: {why}; nothing was sent there, this replica ends\n")
    _leave(directory)
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _TERM_S)
    except TimeoutError:
        process.kill()


def _leave(directory: Path) -> None:
    try:
        reports.leave(directory)
    except OSError as error:  # the disk is full: the gateway will see the server go, and retries what it refuses
        sys.stderr.write(f"replica: cannot tell the gateway: {error.strerror}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="replica", description=__doc__, allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True, help="the replica's directory")
    parser.add_argument("--gateway", required=True, help="host of the gateway: tells which network to listen on")
    parser.add_argument("--key-variable", required=True, help="environment variable for the API key")
    parser.add_argument("--grace-s", type=float, default=3.0, help="time for the gateway to send nothing new")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main())
