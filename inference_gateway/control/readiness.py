"""Readiness of a starting replica: an answer over HTTP, and nothing else."""

from __future__ import annotations

import http.client
from concurrent.futures import Executor
from dataclasses import dataclass

from inference_gateway.control.errands import Errands

TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Question:
    """GET `path` of a replica, with the key it asks for. `restarts` tells the runs of a requeued job apart."""

    name: str
    restarts: int
    host: str
    port: int
    path: str
    key: str


class Readiness:
    """Asks replicas in the executor's threads; at most one question to a replica at a time."""

    def __init__(self, executor: Executor) -> None:
        self._questions: Errands[Question, bool] = Errands(executor)

    def ask(self, question: Question) -> None:
        """Ask, unless the answer to the same question is still awaited."""
        self._questions.start(question, ready, question)

    def answered(self) -> frozenset[tuple[str, int]]:
        """Replicas (name, restarts) that have answered 200 since the last call."""
        return frozenset((found.key.name, found.key.restarts) for found in self._questions.outcomes() if found.result)


def ready(question: Question) -> bool:
    """Whether the replica answers 200 within the timeout."""
    connection = http.client.HTTPConnection(question.host, question.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", question.path, headers={"Authorization": f"Bearer {question.key}"})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
