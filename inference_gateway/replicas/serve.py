"""Runs a replica's server inside its job: finds its ports, registers with the gateway, and ends the server gracefully.

The gateway reaches the server only through a relay (see `relay`). On SIGUSR1 (the time limit is near) or SIGTERM the
gateway is told first; once it sends nothing new, SIGTERM is passed on to the server, which finishes its requests and
exits. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import resource
import secrets
import shlex
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from explsched.errors import warn
from inference_gateway.queueing import Stretch
from inference_gateway.replicas import reports
from inference_gateway.replicas.gang import Gang, Stage, StagingError, filled
from inference_gateway.replicas.ports import address_towards, owned, reserve, taken
from inference_gateway.replicas.relay import Relay, StrangerError, server_context
from inference_gateway.replicas.reports import Registration, UsageCounter, report_reading

AUTHORITY = "authority.pem"
IDENTITY = "identity.pem"
"""Files in the replica's directory: the authority that it trusts, and its own certificate with key."""
KEY = "key"
"""File with the key that the server requires, in the same directory. The wrapper makes a new one at each start."""

_PORT_CHECK_S = 2.0
USAGE_S = 2.0
_LAST_ANSWERS_S = 10.0
"""How long the relay may take to pass on what the server wrote before it ended."""
_GIVEN_UP = 1
_PR_SET_PDEATHSIG = 1
_TERM_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """What to run: a command with placeholders, and the name of the environment variable for its key.

    It runs on the first of `nodes` nodes, `worker` on all others. `stage` is copied to each node first.
    """

    command: tuple[str, ...]
    key_variable: str
    nodes: int = 1
    worker: tuple[str, ...] = ()
    stage: Stage | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the server's exit status (128 + n when signal n ended it)."""
    options = _parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    stage = Stage(*options.stage) if options.stage else None
    worker = tuple(shlex.split(options.worker)) or tuple(command)
    server = Server(tuple(command), options.key_variable, options.nodes, worker, stage)
    return asyncio.run(_run(server, options.directory, options.gateway, options.grace_s))


async def _run(server: Server, directory: Path, gateway: str, grace_s: float) -> int:
    signalled = asyncio.Event()
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # the relay opens two for each request
    host = address_towards(gateway)
    key = secrets.token_urlsafe(32)
    with reserve() as holder, reserve() as meeting, owned(host) as listener:
        port = int(holder.getsockname()[1])
        gang = Gang(server.nodes, host, int(meeting.getsockname()[1]))
        relay = Relay(port, key, taken)
        relay.start(listener, server_context(directory / IDENTITY, directory / AUTHORITY))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _finish, relay, signalled)
        reports.register(directory, Registration(host, listener.getsockname()[1], *_job()))
        try:
            if server.stage is not None:
                await asyncio.to_thread(server.stage.bring)
            process = await _started(server, directory, port, key, gang)
            workers = await _workers(server, directory, port, key, gang)
        except StagingError as error:
            warn("replica", str(error))
            return 1
        except OSError as error:
            warn("replica", f"{server.command[0]}: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        ending = asyncio.create_task(_end_gracefully(signalled, process, directory, grace_s))
        watching = asyncio.create_task(_until_port_taken(relay))
        counting = asyncio.create_task(report_work(relay, directory))
        waiting = asyncio.create_task(process.wait())
        others = asyncio.create_task(_until_a_node_ends(workers))
        await asyncio.wait({waiting, watching, others}, return_when=asyncio.FIRST_COMPLETED)
        given_up = not waiting.done()
        if given_up:
            await _give_up(process, directory, (watching if watching.done() else others).result())
        status = await waiting
        for task in (ending, watching, counting, others):
            task.cancel()
        await relay.end(within_s=_LAST_ANSWERS_S)
        _write_usage(relay.usage, directory)
    if given_up:
        return _GIVEN_UP
    return status if status >= 0 else 128 - status


def _job() -> tuple[int, int]:
    """The job's id and its number of restarts."""
    return int(os.environ.get("SLURM_JOB_ID", "0")), int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _values(server: Server, directory: Path, port: int) -> dict[str, str]:
    """The placeholders that have the same value on all nodes."""
    return {
        "{port}": str(port),
        "{host}": "127.0.0.1",
        "{key_file}": str(directory / KEY),
        "{replica}": directory.name,
        **({"{model}": str(server.stage.copy)} if server.stage else {}),
    }


async def _started(server: Server, directory: Path, port: int, key: str, gang: Gang) -> Process:
    """Start the server. Raises `OSError`."""
    handle = os.open(directory / KEY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(key + "\n")
    placeholders = {**_values(server, directory, port), **gang.placeholders(rank=0)}
    environment = {**os.environ, server.key_variable: key, **(gang.environment(rank=0) if gang.nodes > 1 else {})}
    # A session of its own: with `proctrack/pgid` Slurm's signals then reach only the wrapper. Others: see `_finish`.
    return await asyncio.create_subprocess_exec(
        *filled(server.command, placeholders), env=environment, start_new_session=True, preexec_fn=_end_with_parent
    )


async def _workers(server: Server, directory: Path, port: int, key: str, gang: Gang) -> Process | None:
    """Start the `srun` of the workers on the other nodes; None if there are none. Raises `OSError`."""
    if gang.nodes == 1:
        return None
    command = gang.workers(server.worker, _values(server, directory, port), server.stage)
    environment = {**os.environ, server.key_variable: key}
    return await asyncio.create_subprocess_exec(
        *command, env=environment, start_new_session=True, preexec_fn=_end_with_parent
    )


async def _until_a_node_ends(workers: Process | None) -> str:
    """Wait until the workers end, which ends the replica; for ever if there are none."""
    if workers is None:
        await asyncio.Event().wait()
    else:
        await workers.wait()
    return "the server on another node has ended"


def _end_with_parent() -> None:
    """Have Linux kill this process when the wrapper dies: it would keep its GPUs, and nothing else would end it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def _end_gracefully(signalled: asyncio.Event, process: Process, directory: Path, grace_s: float) -> None:
    await signalled.wait()
    _leave(directory)
    await asyncio.sleep(grace_s)
    process.terminate()


def _finish(relay: Relay, signalled: asyncio.Event) -> None:
    """End at once what can be: Slurm may send this signal to the server, too, which then closes its connections now."""
    relay.finish()
    signalled.set()


async def _until_port_taken(relay: Relay) -> str:
    """Check again and again that the port is the server's own; returns the reason once it is not."""
    while True:
        try:
            await relay.check()
        except (StrangerError, OSError) as error:
            return f"{error}; nothing was sent there"
        await asyncio.sleep(_PORT_CHECK_S)


async def report_work(relay: Relay, directory: Path) -> None:
    """Report what the relay counts, for ever. In threads: answers must not wait for storage that hangs."""
    reported: list[Stretch] = []
    while True:
        await asyncio.sleep(USAGE_S)
        await relay.count_open()
        await asyncio.to_thread(_write_usage, relay.usage, directory)
        known = list(relay.reading.stretches)
        if known != reported:
            try:
                await asyncio.to_thread(report_reading, directory, known)
                reported = known
            except OSError as error:
                warn("replica", f"what it reads is not reported: {error.strerror}")


def _write_usage(usage: UsageCounter, directory: Path) -> None:
    try:
        usage.write(directory)
    except OSError as error:  # e.g. the disk is full: these are sums, so the next report includes this one
        warn("replica", f"tokens not reported: {error.strerror}")


async def _give_up(process: Process, directory: Path, why: str) -> None:
    """End a server that cannot be used any more; the gateway will start another replica."""
    warn("replica", f"{why}; this replica ends")
    _leave(directory)
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _TERM_S)
    except TimeoutError:
        process.kill()


def _leave(directory: Path) -> None:
    try:
        reports.leave(directory)
    except OSError as error:  # e.g. the disk is full: the gateway will see the server end, and retries failed requests
        warn("replica", f"cannot register with the gateway: {error.strerror}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="replica", description=__doc__, allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True, help="the replica's directory")
    parser.add_argument("--gateway", required=True, help="host of the gateway; selects the network to listen on")
    parser.add_argument("--key-variable", required=True, help="environment variable for the API key")
    parser.add_argument("--grace-s", type=float, default=3.0, help="time for the gateway to send nothing new")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the job that are one replica")
    parser.add_argument("--worker", default="", help="command on all nodes but the first; by default the same")
    parser.add_argument("--stage", nargs=2, type=Path, metavar=("SOURCE", "TARGET"), help="copied to each node first")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main())
