"""What is known of each replica now, from Slurm, its job, HTTP and the data plane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from inference_gateway.control.readiness import Question, Readiness
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.slurm_desk import SlurmDesk
from inference_gateway.control.transitions import Witnesses
from inference_gateway.model import ServerState
from inference_gateway.replicas import registration
from inference_gateway.replicas.places import Places
from inference_gateway.replicas.registration import Registration
from inference_gateway.sections import ServiceSection


class Evidence:
    """The witnesses of all replicas. `services` say where to ask one whether it is ready."""

    def __init__(
        self, services: Mapping[str, ServiceSection], places: Places, desk: SlurmDesk, readiness: Readiness
    ) -> None:
        self._services = services
        self._places = places
        self._desk = desk
        self._readiness = readiness

    def gather(
        self, replicas: Iterable[Replica], servers: Sequence[ServerState] | None
    ) -> Iterator[tuple[Replica, Witnesses]]:
        """Each replica with what is known of it. `servers` is None while the data plane does not answer."""
        by_name = {server.name: server for server in servers or ()}
        answered = self._readiness.answered()
        listing = self._desk.listing
        for replica in replicas:
            server = by_name.get(replica.name)
            yield (
                replica,
                Witnesses(
                    job=listing.jobs.get(replica.name),
                    listed_s=listing.began_s,
                    registration=self._registration(replica),
                    leaving=replica.phase is Phase.SERVING and registration.leaving(self._places.replica(replica.name)),
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
        told = registration.registered(self._places.replica(replica.name))
        if told and replica.phase is Phase.PENDING and told.restarts == replica.restarts:
            self._desk.hurry()  # it runs before we have seen that
        return told
