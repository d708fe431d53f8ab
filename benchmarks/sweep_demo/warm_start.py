"""Starts trainings without waiting for PyTorch's import: a server that has imported it forks one process per training.

    python -m benchmarks.sweep_demo.warm_start serve SOCKET
    python -m benchmarks.sweep_demo.warm_start run SOCKET --lr=0.1 ...

On two cores eight trainings that start at once import PyTorch for longer than they train between two preemptions:
without this, the demo would measure imports. `run` is what Slurm sees: it hands its arguments, environment and standard
streams to the server, passes signals on, and ends as the training ends. If it is killed, so is the training.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

_STREAMS = (0, 1, 2)
_FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_LARGEST_REQUEST = 1 << 20


def serve(path: Path) -> None:
    """Listen at `path` until a signal ends the process."""
    import optuna  # noqa: F401  what takes so long

    from benchmarks.sweep_demo import train

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that attend to a client
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
        listener.listen(64)
        while True:
            client, _ = listener.accept()
            with client:
                if os.fork() == 0:
                    listener.close()
                    _attend(client, train.main)


def _attend(client: socket.socket, training: Callable[[], None]) -> NoReturn:
    """Run one training for `client` in a process of its own. Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, ancillary, _, _ = client.recvmsg(_LARGEST_REQUEST, socket.CMSG_SPACE(len(_STREAMS) * 4))
    if not data:
        os._exit(0)
    request = json.loads(data)
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    pid = os.fork()
    if pid == 0:
        client.close()
        for stream, given in zip(_STREAMS, streams, strict=True):
            os.dup2(given, stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[1:] = request["arguments"]
        os._exit(_status_of(training))
    ended = os.pidfd_open(pid)
    watched: list[socket.socket | int] = [client, ended]
    while ended not in select.select(watched, [], [])[0]:
        number = client.recv(1)
        signal.pidfd_send_signal(ended, number[0] if number else signal.SIGKILL)
        if not number:  # the client was killed
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    client.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    os._exit(0)


def _status_of(training: Callable[[], None]) -> int:
    """Exit status of the training, as Python itself would have it."""
    try:
        training()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # the traceback is the job's output
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def run(path: Path, arguments: list[str]) -> int:
    """Have the server at `path` run a training with these arguments; returns its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.fspath(path))

        def forward(number: int, _frame: FrameType | None) -> None:
            server.send(bytes([number]))

        for number in _FORWARDED:
            signal.signal(number, forward)
        request = json.dumps({"arguments": arguments, "environment": dict(os.environ)}).encode()
        streams = array.array("i", _STREAMS)
        server.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        status = server.recv(1)
    return status[0] if status else 1


def main() -> None:
    """Serve, or run."""
    role, path, *arguments = sys.argv[1:]
    if role == "serve":
        serve(Path(path))
    sys.exit(run(Path(path), arguments))


if __name__ == "__main__":
    main()
