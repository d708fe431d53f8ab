"""Readiness of a starting replica: an answer over HTTP by the replica itself, and nothing else."""

from __future__ import annotations

import http.client
import ssl
from concurrent.futures import Executor
from dataclasses import dataclass

from inference_gateway.control.errands import Errands

TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Question:
    """GET `path` of a replica. `restarts` tells the runs of a requeued job apart."""

    name: str
    restarts: int
    host: str
    port: int
    path: str


class Readiness:
    """Asks replicas in the executor's threads; at most one question to a replica at a time.

    `context` is how the gateway connects: who cannot prove to be the replica is not asked.
    """

    def __init__(self, executor: Executor, context: ssl.SSLContext) -> None:
        self._questions: Errands[Question, bool] = Errands(executor)
        self._context = context

    def ask(self, question: Question) -> None:
        """Ask, unless the answer to the same question is still awaited."""
        self._questions.start(question, ready, question, self._context)

    def answered(self) -> frozenset[tuple[str, int]]:
        """Replicas (name, restarts) that have answered 200 since the last call."""
        return frozenset((found.key.name, found.key.restarts) for found in self._questions.outcomes() if found.result)


def ready(question: Question, context: ssl.SSLContext) -> bool:
    """Whether the replica of that name, and nobody else, answers 200 within the timeout."""
    connection = http.client.HTTPConnection(question.host, question.port, timeout=TIMEOUT_S)
    try:
        connection.connect()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=question.name)
        connection.request("GET", question.path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
