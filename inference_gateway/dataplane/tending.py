"""What HAProxy cannot do by itself, once a second: keep a floor of replicas in, and free requests that are stuck.

It runs in the activator's process, so that it goes on without the control plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from inference_gateway.dataplane import answers
from inference_gateway.dataplane.activator_places import Places
from inference_gateway.dataplane.activator_services import HeldService
from inference_gateway.dataplane.configuration import ACTIVATOR, BACKEND_PREFIX
from inference_gateway.dataplane.endpoints import EndpointBook
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.floor import Ejections, failed_requests, put_back
from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.errors import RefusedError


@dataclass(slots=True)
class Tender:
    """The tending of one HAProxy. Calls raise `DataPlaneError`."""

    files: Files
    _ejections: Ejections = field(default_factory=Ejections)
    _places: dict[str, Places] = field(default_factory=dict)

    def resume(self) -> None:
        """Let every replica be checked again: who paused the checks of some may have ended."""
        api = RuntimeApi(self.files.stats_socket)
        rows = answers.server_states(api.ask("show servers state"))
        api.order([f"enable health {_full(row.service, row.name)}" for row in rows if not row.watched])

    def tend(self, services: Mapping[str, HeldService], now_s: float) -> list[str]:
        """One round; what was done, for the log. `now_s` is any steady clock."""
        api = RuntimeApi(self.files.stats_socket)
        done: list[str] = []
        commands: list[str] = []
        for service, name in self._ejections.due(now_s):
            commands.append(f"enable health {_full(service, name)}")
            done.append(f"checked again service={service} replica={name}")
        for row in answers.backends(api.ask("show stat -1 2 -1")):
            held = services.get(row.service)
            if held is None:
                continue
            if row.usable < self._listed(row.service):
                sick = answers.server_rows(api.ask(f"show stat {BACKEND_PREFIX}{row.service} 4 -1"))
                commands += self._treat(held, sick, now_s, done)
            if row.queued and not row.usable:
                # HAProxy leaves what waits in a backend there when its last replica goes; a backup that comes up takes
                # it.
                activator = _full(row.service, ACTIVATOR)
                commands += [f"set server {activator} state maint", f"set server {activator} state ready"]
                done.append(f"moved to the activator service={row.service} requests={row.queued}")
        try:
            api.order(commands)
        except RefusedError as error:
            done.append(str(error))  # a replica may have been removed since; the next round sees what is there
        return done

    def _treat(
        self, service: HeldService, sick: Iterable[answers.ServerRow], now_s: float, done: list[str]
    ) -> list[str]:
        rows = list(sick)
        commands: list[str] = []
        back = put_back(rows, service.floor_share)
        for name in back:
            full = _full(service.name, name)
            self._ejections.release(service.name, name)
            commands += [f"enable health {full}", f"set server {full} health up"]
            done.append(f"kept in service={service.name} replica={name}")
        for row in rows:
            bad = row.name not in back and failed_requests(row)
            if bad and self._ejections.eject(service.name, row.name, service.ejection_s, now_s):
                full = _full(service.name, row.name)
                # "Down" again: a check that has passed since HAProxy was asked has brought it back, to stay unchecked.
                commands += [f"disable health {full}", f"set server {full} health down"]
                done.append(f"ejected service={service.name} replica={row.name} ({row.remark})")
        return commands

    def _listed(self, service: str) -> int:
        if service not in self._places:
            self._places[service] = Places(EndpointBook(self.files.endpoints), service)
        return len(self._places[service].ready())


def _full(service: str, name: str) -> str:
    return f"{BACKEND_PREFIX}{service}/{name}"
