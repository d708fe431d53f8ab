"""What HAProxy knows at this moment, read without changing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from inference_gateway.dataplane import answers
from inference_gateway.dataplane.activator_client import ActivatorState
from inference_gateway.dataplane.configuration import BACKEND_PREFIX
from inference_gateway.dataplane.endpoints import EndpointBook
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.ledger import TrafficLedger
from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.model import ServerState, Traffic


@dataclass(slots=True)
class Reading:
    """Counters and states of all workers of one HAProxy. `held`: what the activator has. Raises `DataPlaneError`."""

    files: Files
    _ledger: TrafficLedger = field(default_factory=TrafficLedger)

    def traffic(self, services: Iterable[str], held: Mapping[str, ActivatorState]) -> list[Traffic]:
        """One entry a service, at the cost of one `show stat` of the backends. Who is held for a turn is queued."""
        waiting = {pid: answers.held(text) for pid, text in self._ask_all("show held").items()}
        found = {
            pid: [replace(row, queued=row.queued + waiting.get(pid, {}).get(row.service, 0)) for row in rows]
            for pid, text in self._ask_all("show stat -1 2 -1").items()
            if (rows := answers.backends(text))
        }
        self._ledger.update(found)
        return self._ledger.traffic(services, {service: state.waiting for service, state in held.items()})

    def states(self, service: str | None = None) -> list[answers.StateRow]:
        """The replicas of a service, or of all."""
        return answers.server_states(RuntimeApi(self.files.stats_socket).ask(f"show servers state{_of(service)}"))

    def in_flight(self, held: Mapping[str, ActivatorState], service: str | None = None) -> Counter[tuple[str, str]]:
        """(service, replica) -> its requests, in every worker and in the activator."""
        found: Counter[tuple[str, str]] = Counter()
        for text in self._ask_all(f"show servers conn{_of(service)}").values():
            found.update(answers.in_flight(text))
        for name, state in held.items():
            found.update({(name, replica): count for replica, count in state.relaying.items()})
        return found

    def servers(self, held: Mapping[str, ActivatorState]) -> list[ServerState]:
        """All replicas, and those that only requests from before a reload still use."""
        using = self.in_flight(held)
        rows = self.states()
        found = [
            ServerState(row.service, row.name, row.host, row.port, row.state, using[row.service, row.name])
            for row in rows
        ]
        left = using.keys() - {(row.service, row.name) for row in rows}
        book = EndpointBook(self.files.endpoints)
        for service in sorted({service for service, _ in left}):
            for replica in book.read(service):
                if (service, replica.name) in left:
                    count = using[service, replica.name]
                    found.append(ServerState(service, replica.name, replica.host, replica.port, "draining", count))
        return found

    def dropped_logs(self) -> int:
        """Lines of the access log that the HAProxy that takes new requests could not pass on."""
        return answers.dropped_logs(RuntimeApi(self.files.stats_socket).ask("show info"))

    def workers(self) -> answers.Workers:
        """The processes there are."""
        return answers.workers(RuntimeApi(self.files.master_socket).ask("show proc"))

    def _ask_all(self, command: str) -> dict[int, str]:
        """Every worker's answer by process id; one that has just ended gives none."""
        workers = self.workers()
        found = {workers.current: RuntimeApi(self.files.stats_socket).ask(command)}
        for pid in workers.leaving:
            text = RuntimeApi(self.files.master_socket).ask(f"@!{pid} {command}")
            if text and not text.startswith("Can't find"):
                found[pid] = text
        return found


def _of(service: str | None) -> str:
    return "" if service is None else f" {BACKEND_PREFIX}{service}"
