"""Observes each replica, through Slurm, its job, HTTP and the data plane.

A starting replica is ready once it answers over HTTP, and not before.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from inference_gateway.control.background_tasks import BackgroundTasks
from inference_gateway.control.replica import Phase, Replica, ReplicaObservation
from inference_gateway.control.slurm_sync import SlurmSync
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ServerState
from inference_gateway.replicas import reports
from inference_gateway.replicas.reports import Registration
from inference_gateway.sections import ServiceSection


class ReplicaObserver:
    """Makes the observations of all replicas. `services` have the health paths."""

    def __init__(
        self, services: Mapping[str, ServiceSection], paths: GatewayPaths, slurm_sync: SlurmSync, readiness: Readiness
    ) -> None:
        self._services = services
        self._paths = paths
        self._slurm = slurm_sync
        self._readiness = readiness

    def gather(
        self, replicas: Iterable[Replica], servers: Sequence[ServerState], *, plane_answers: bool
    ) -> Iterator[tuple[Replica, ReplicaObservation]]:
        """Each replica with its observation. `servers` lacks those of a data plane of ours that does not answer."""
        by_name = {server.name: server for server in servers}
        answered = self._readiness.answered()
        listing = self._slurm.listing
        for replica in replicas:
            server = by_name.get(replica.name)
            yield (
                replica,
                ReplicaObservation(
                    job=listing.jobs.get(replica.name),
                    listed_s=listing.began_s,
                    registration=self._registration(replica),
                    leaving=replica.phase is Phase.SERVING and reports.leaving(self._paths.replica(replica.name)),
                    answered=(replica.name, replica.restarts) in answered,
                    server_up=None if server is None else server.state != "down",
                    passed=None if server is None else server.passed,
                    in_flight=None if server is None else server.in_flight,
                    plane_answers=plane_answers,
                ),
            )

    def ask(self, replicas: Iterable[Replica]) -> None:
        """Probe the starting replicas; a later `gather` has the results."""
        for replica in replicas:
            service = self._services.get(replica.service)
            if service and replica.phase is Phase.STARTING and replica.port:
                where = (replica.host, replica.port, service.health.path)
                self._readiness.ask(Question(replica.name, replica.restarts, *where))

    def _registration(self, replica: Replica) -> Registration | None:
        """The registration by its job, while its address is unknown."""
        if replica.port or replica.phase not in (Phase.PENDING, Phase.STARTING):
            return None
        found = reports.registered(self._paths.replica(replica.name))
        if found and replica.phase is Phase.PENDING and found.restarts == replica.restarts:
            self._slurm.hurry()  # it runs already, which the last listing did not show
        return found


TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Question:
    """A GET of `path` at a replica. `restarts` tells the runs of a requeued job apart."""

    name: str
    restarts: int
    host: str
    port: int
    path: str


class Readiness:
    """Probes replicas in the executor's threads; at most one probe per replica at a time.

    `context` is the TLS context: a server without the replica's certificate gets no request.
    """

    def __init__(self, executor: Executor, context: ssl.SSLContext) -> None:
        self._questions: BackgroundTasks[Question, bool] = BackgroundTasks(executor)
        self._context = context

    def ask(self, question: Question) -> None:
        """Send the probe, unless the same one is still running."""
        self._questions.start(question, ready, question, self._context)

    def answered(self) -> frozenset[tuple[str, int]]:
        """The replicas (name, restarts) that have answered 200 since the last call."""
        return frozenset((found.key.name, found.key.restarts) for found in self._questions.outcomes() if found.result)


def ready(question: Question, context: ssl.SSLContext) -> bool:
    """Whether the replica, authenticated by its name, answers 200 within the timeout."""
    try:
        with answer_of(question, context) as answer:
            return answer.status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def answer_of(question: Question, context: ssl.SSLContext) -> Iterator[http.client.HTTPResponse]:
    """The answer of the replica, authenticated by its name. Raises `OSError`, `HTTPException`."""
    connection = http.client.HTTPConnection(question.host, question.port, timeout=TIMEOUT_S)
    try:
        connection.connect()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=question.name)
        connection.request("GET", question.path)
        yield connection.getresponse()
    finally:
        connection.close()
