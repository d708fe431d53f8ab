"""The data plane as the control plane uses it: looks at its servers and counters, and changes of them.

Every call waits for the data plane's answer, with the data plane's own time-out. What it refuses is written down and
tried again in the next second, because it is still missing then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from inference_gateway.control import plane
from inference_gateway.control.journal import Journal, Outage
from inference_gateway.control.plane import Add, Drain, PlaneChange
from inference_gateway.control.replica import Replica
from inference_gateway.control.service import ServiceControl
from inference_gateway.control.settings import retry_after_s
from inference_gateway.errors import GatewayError
from inference_gateway.model import DataPlane, ServerState, Traffic


class PlaneDesk:
    """The servers of the services in `concurrency`, which says how many requests a replica of each may have."""

    def __init__(self, data_plane: DataPlane, concurrency: Mapping[str, int], journal: Journal) -> None:
        self._plane = data_plane
        self._concurrency = concurrency
        self._journal = journal
        self._outage = Outage("data plane", journal)
        self._told_s: dict[str, int] = {}

    def servers(self) -> Sequence[ServerState]:
        """All that it has. Raises `GatewayError`."""
        return self._plane.servers()

    def look(self) -> tuple[Sequence[ServerState] | None, Mapping[str, Traffic]]:
        """Its servers and counters; None and nothing while it does not answer."""
        try:
            found = self._plane.servers(), {traffic.service: traffic for traffic in self._plane.traffic()}
        except GatewayError as error:
            self._outage.note(str(error))
            self._told_s.clear()  # a new HAProxy begins with what is configured
            return None, {}
        self._outage.note("")
        return found

    def bring_in_line(self, replicas: Iterable[Replica], have: Sequence[ServerState]) -> None:
        """Change what is not as it should be. `have` is what the last look found."""
        for change in plane.changes(replicas, have, self._concurrency):
            try:
                self._make(change)
            except GatewayError as error:
                self._journal.note("data plane refused", change.service, change=str(change), reason=str(error))

    def tell_start_times(self, services: Mapping[str, ServiceControl]) -> None:
        """Let refused clients know how long a replica takes to start, by what has been measured."""
        for name, service in services.items():
            seconds = retry_after_s(service.start_s)
            if service.measured and self._told_s.get(name) != seconds:
                try:
                    self._plane.set_retry_after(name, seconds)
                except GatewayError as error:
                    self._journal.note("data plane refused", name, change="Retry-After", reason=str(error))
                self._told_s[name] = seconds

    def _make(self, change: PlaneChange) -> None:
        if isinstance(change, Add):
            self._plane.add(change.service, change.endpoint)
        elif isinstance(change, Drain):
            self._plane.drain(change.service, change.name)
        else:
            self._plane.remove(change.service, change.name)  # False: in the next tick again
