"""The health loop: what HAProxy cannot do by itself, once a second.

HAProxy takes a replica out by its checks and by failed requests, each replica for itself. Taken together that can empty
a service: a busy model server that answers its health check late is better than none. As in Envoy (outlier detection,
panic threshold) a share of the replicas stays in whatever their health. Requests that are stuck in a backend without
replicas are freed. The loop runs in the activator's process, so that it goes on without the control plane.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inference_gateway.dataplane import runtime
from inference_gateway.dataplane.configuration import ACTIVATOR, BACKEND_PREFIX
from inference_gateway.dataplane.endpoints import EndpointFiles, HeldService, ReadyReplicas
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.runtime import RuntimeApi, ServerRow
from inference_gateway.errors import RefusedError

# Codes of a check that found nobody to talk to, or (L6RSP) somebody who could not prove to be the replica: not worth a
# try.
_NOBODY = ("L4CON", "L4TOUT", "L6RSP", "SOCKERR")
_BY_REQUESTS = "HANA"
_LONGEST = 10


def put_back(replicas: Sequence[ServerRow], share: float) -> list[str]:
    """The names of the replicas that are out by their health and should be in again.

    At least ceil(share x replicas) and one stay in, as far as they accept connections; those whose last check passed
    come first. Draining replicas and those in maintenance do not count.
    """
    counted = [row for row in replicas if row.status.startswith(("UP", "DOWN", "no check"))]
    out = [row for row in counted if row.status.startswith("DOWN") and _accepts(row)]
    floor = max(1, math.ceil(share * len(counted)))
    inside = sum(not row.status.startswith("DOWN") for row in counted)
    out.sort(key=lambda row: (not row.check.startswith("L7OK"), row.name))
    return [row.name for row in out[: max(0, floor - inside)]]


def failed_requests(row: ServerRow) -> bool:
    """Whether the replica is out because it answered requests badly (not because it was not there)."""
    return row.status.startswith("DOWN") and row.check == _BY_REQUESTS and _accepts(row)


def _accepts(row: ServerRow) -> bool:
    return not (row.check in _NOBODY or (row.check == _BY_REQUESTS and " L4 " in f" {row.remark} "))


@dataclass(frozen=True, slots=True)
class _Stay:
    """A replica's last time out: until when, how many times longer than the first, and whether it is still out."""

    until_s: float
    times: int
    length_s: float
    out: bool


@dataclass(slots=True)
class Ejections:
    """How long replicas stay out that answer checks well and requests badly: the n-th time n times as long.

    Ten times at most; a replica that did well for ten times its last stay starts anew.
    """

    _stays: dict[tuple[str, str], _Stay] = field(default_factory=dict)

    def eject(self, service: str, name: str, ejection_s: float, now_s: float) -> bool:
        """Note an ejection; False if the replica is noted as out already."""
        last = self._stays.get((service, name))
        if last is not None and last.out:
            return False
        times = min(_LONGEST, last.times + 1 if last is not None else 1)
        self._stays[service, name] = _Stay(now_s + times * ejection_s, times, times * ejection_s, out=True)
        return True

    def release(self, service: str, name: str) -> None:
        """The replica is in again before its time."""
        last = self._stays.get((service, name))
        if last is not None:
            self._stays[service, name] = replace(last, out=False)

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """Those whose time is up: (service, replica), each told once an ejection."""
        due = [key for key, stay in self._stays.items() if stay.out and stay.until_s <= now_s]
        for key in due:
            self.release(*key)
        self._stays = {
            key: stay
            for key, stay in self._stays.items()
            if stay.out or now_s <= stay.until_s + _LONGEST * stay.length_s
        }
        return due


@dataclass(slots=True)
class HealthLoop:
    """Checks one HAProxy. Calls raise `DataPlaneError`."""

    files: Files
    _ejections: Ejections = field(default_factory=Ejections)
    _replicas: dict[str, ReadyReplicas] = field(default_factory=dict)

    def resume(self) -> None:
        """Let every replica be checked again: who paused the checks of some may have ended."""
        api = RuntimeApi(self.files.stats_socket)
        rows = runtime.server_states(api.ask("show servers state"))
        api.order([f"enable health {_full(row.service, row.name)}" for row in rows if not row.watched])

    def run_round(self, services: Mapping[str, HeldService], now_s: float) -> list[str]:
        """One round; what was done, for the log. `now_s` is any steady clock."""
        api = RuntimeApi(self.files.stats_socket)
        done: list[str] = []
        commands: list[str] = []
        for service, name in self._ejections.due(now_s):
            commands.append(f"enable health {_full(service, name)}")
            done.append(f"checked again service={service} replica={name}")
        for row in runtime.backends(api.ask("show stat -1 2 -1")):
            held = services.get(row.service)
            if held is None:
                continue
            if row.usable < self._listed(row.service):
                sick = runtime.server_rows(api.ask(f"show stat {BACKEND_PREFIX}{row.service} 4 -1"))
                commands += self.treat(held, sick, now_s, done)
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

    def treat(
        self, service: HeldService, sick: Iterable[runtime.ServerRow], now_s: float, done: list[str]
    ) -> list[str]:
        """Orders to HAProxy for the sick replicas of a service; what is done is added to `done`."""
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
        if service not in self._replicas:
            self._replicas[service] = ReadyReplicas(EndpointFiles(self.files.endpoints), service)
        return len(self._replicas[service].ready())


def _full(service: str, name: str) -> str:
    return f"{BACKEND_PREFIX}{service}/{name}"
