"""HAProxy's runtime API: text commands over a Unix socket, one connection a batch, bounded in time."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_gateway.errors import NotRunningError, RefusedError

# HAProxy reads a line of commands into one buffer, of which the smallest we configure has 16 KiB.
_MOST_BYTES = 12_000
# An empty line says that all is well. Some commands have words before it, `del server` has words alone.
_SAID = {"add server": "New server registered.\n", "del server": "Server deleted."}
_PRAISE = frozenset(words.strip() for words in _SAID.values())


@dataclass(frozen=True, slots=True)
class RuntimeApi:
    """A runtime socket. A call takes no longer than `timeout_s`."""

    path: Path
    timeout_s: float = 5.0

    def ask(self, command: str) -> str:
        """The answer to one command. Raises `NotRunningError`."""
        deadline_s = time.monotonic() + self.timeout_s
        parts: list[bytes] = []
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(self.timeout_s)
                link.connect(str(self.path))
                link.sendall(command.encode() + b"\n")
                link.shutdown(socket.SHUT_WR)  # the master answers further commands until it sees the end
                while part := link.recv(262144):
                    parts.append(part)
                    link.settimeout(max(0.001, deadline_s - time.monotonic()))
        except TimeoutError as error:
            raise NotRunningError(f"{self.path}: no answer from HAProxy within {self.timeout_s:g} s") from error
        except OSError as error:
            raise NotRunningError(f"{self.path}: HAProxy cannot be reached: {error.strerror}") from error
        return b"".join(parts).decode(errors="replace")

    def order(self, commands: Sequence[str]) -> None:
        """Carry out commands in order, all of them even if one is refused.

        Raises:
            NotRunningError: HAProxy cannot be reached.
            RefusedError: it refused some; the message names each with its reason.

        """
        faults: list[str] = []
        for batch in _batches(commands):
            answer = self.ask(";".join(batch))
            if not _all_done(batch, answer):
                words = [line for line in _words(answer) if line not in _PRAISE]
                faults.append(f"{'; '.join(words) or 'no answer'} (to {'; '.join(batch)})")
        if faults:
            raise RefusedError("HAProxy refused: " + "; ".join(faults))


def _all_done(commands: Sequence[str], answer: str) -> bool:
    """Whether HAProxy prints for each command that it is done. Newer ones end some answers with an empty line more."""
    expected = "".join(_SAID.get(" ".join(command.split()[:2]), "") + "\n" for command in commands)
    return _words(answer) == _words(expected) and answer.count("\n") >= expected.count("\n")


def _words(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _batches(commands: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    size = _MOST_BYTES
    for command in commands:
        if size + len(command) + 1 > _MOST_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(command)
        size += len(command) + 1
    return batches
