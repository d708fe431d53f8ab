"""What is known of each replica now, from Slurm, its job, HTTP and the data plane.

A starting replica is ready when it answers over HTTP, and not before.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from inference_gateway.control.replica import Phase, Replica, ReplicaObservation
from inference_gateway.control.slurm_sync import BackgroundTasks, SlurmSync
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ServerState
from inference_gateway.replicas import registration
from inference_gateway.replicas.registration import Registration
from inference_gateway.services import ServiceSection


class ReplicaObserver:
    """The observations of all replicas. `services` say where to ask one whether it is ready."""

    def __init__(
        self, services: Mapping[str, ServiceSection], paths: GatewayPaths, slurm_sync: SlurmSync, readiness: Readiness
    ) -> None:
        self._services = services
        self._paths = paths
        self._slurm = slurm_sync
        self._readiness = readiness

    def gather(
        self, replicas: Iterable[Replica], servers: Sequence[ServerState] | None
    ) -> Iterator[tuple[Replica, ReplicaObservation]]:
        """Each replica with what is known of it. `servers` is None while the data plane does not answer."""
        by_name = {server.name: server for server in servers or ()}
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
                    leaving=replica.phase is Phase.SERVING and registration.leaving(self._paths.replica(replica.name)),
                    answered=(replica.name, replica.restarts) in answered,
                    server_up=None if server is None else server.state != "down",
                    in_flight=None if server is None else server.in_flight,
                    plane_answers=servers is not None,
                ),
            )

    def ask(self, replicas: Iterable[Replica]) -> None:
        """Ask those that start whether they are ready; the answers are there at a later `gather`."""
        for replica in replicas:
            service = self._services.get(replica.service)
            if service and replica.phase is Phase.STARTING and replica.port:
                where = (replica.host, replica.port, service.health.path)
                self._readiness.ask(Question(replica.name, replica.restarts, *where))

    def _registration(self, replica: Replica) -> Registration | None:
        """What its job has told, as long as that is awaited."""
        if replica.port or replica.phase not in (Phase.PENDING, Phase.STARTING):
            return None
        told = registration.registered(self._paths.replica(replica.name))
        if told and replica.phase is Phase.PENDING and told.restarts == replica.restarts:
            self._slurm.hurry()  # it runs before we have seen that
        return told


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
        self._questions: BackgroundTasks[Question, bool] = BackgroundTasks(executor)
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
