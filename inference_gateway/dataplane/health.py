"""The health loop: once a second, what HAProxy cannot do by itself.

HAProxy ejects each replica on its own, by failed checks and failed requests. Together these can empty a service,
although a busy model server that answers its health check late is better than none. As in Envoy (outlier detection,
panic threshold), a fraction of the replicas stays in whatever their health. Requests that are stuck in a backend
without replicas are moved to the activator. The loop runs in the activator's process, so it does not need the control
plane.
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

# Codes of a check that could not connect, or (L6) whose TLS handshake failed or was never answered: such a replica is
# not put back. For one that Slurm has suspended the kernel still accepts connections.
_UNREACHABLE = ("L4CON", "L4TOUT", "L6RSP", "L6TOUT", "SOCKERR")
_BY_REQUESTS = "HANA"
_LONGEST = 10
"""An ejection lasts at most this many times the first one."""


def put_back(replicas: Sequence[ServerRow], share: float) -> list[str]:
    """The names of the unhealthy replicas to put back, so that at least max(1, ceil(share x replicas)) are in.

    Only replicas that accept connections are put back, those whose last check passed first. Replicas that drain or are
    in maintenance do not count.
    """
    counted = [row for row in replicas if row.status.startswith(("UP", "DOWN", "no check"))]
    out = [row for row in counted if row.status.startswith("DOWN") and _accepts(row)]
    floor = max(1, math.ceil(share * len(counted)))
    inside = sum(not row.status.startswith("DOWN") for row in counted)
    out.sort(key=lambda row: (not row.check.startswith("L7OK"), row.name))
    return [row.name for row in out[: max(0, floor - inside)]]


def failed_requests(row: ServerRow) -> bool:
    """Whether the replica is out because requests to it failed although it accepts connections."""
    return row.status.startswith("DOWN") and row.check == _BY_REQUESTS and _accepts(row)


def _accepts(row: ServerRow) -> bool:
    return not (row.check in _UNREACHABLE or (row.check == _BY_REQUESTS and " L4 " in f" {row.remark} "))


@dataclass(frozen=True, slots=True)
class _Ejection:
    """A replica's last ejection: its end, its length (also in multiples of the first), and whether it still lasts."""

    until_s: float
    times: int
    length_s: float
    out: bool


@dataclass(slots=True)
class Ejections:
    """How long replicas are ejected that pass their checks but fail requests: the n-th ejection is n times as long.

    At most ten times; a replica without failures for ten times its last ejection starts again from one.
    """

    _last: dict[tuple[str, str], _Ejection] = field(default_factory=dict)

    def eject(self, service: str, name: str, ejection_s: float, now_s: float) -> bool:
        """Record an ejection; False if the replica is ejected already."""
        last = self._last.get((service, name))
        if last is not None and last.out:
            return False
        times = min(_LONGEST, last.times + 1 if last is not None else 1)
        self._last[service, name] = _Ejection(now_s + times * ejection_s, times, times * ejection_s, out=True)
        return True

    def release(self, service: str, name: str) -> None:
        """Record that the replica is in again."""
        last = self._last.get((service, name))
        if last is not None:
            self._last[service, name] = replace(last, out=False)

    def out(self, service: str) -> set[str]:
        """The ejected replicas of a service."""
        return {name for (of, name), one in self._last.items() if of == service and one.out}

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """The (service, replica) pairs whose ejection has ended; each is returned once per ejection."""
        due = [key for key, one in self._last.items() if one.out and one.until_s <= now_s]
        for key in due:
            self.release(*key)
        self._last = {
            key: one for key, one in self._last.items() if one.out or now_s <= one.until_s + _LONGEST * one.length_s
        }
        return due


@dataclass(slots=True)
class HealthLoop:
    """The health loop of one HAProxy. Methods raise `DataPlaneError`."""

    files: Files
    _ejections: Ejections = field(default_factory=Ejections)
    _replicas: dict[str, ReadyReplicas] = field(default_factory=dict)

    def resume(self) -> None:
        """Enable all health checks: a process that disabled some may have died."""
        api = RuntimeApi(self.files.stats_socket)
        rows = runtime.server_states(api.ask("show servers state"))
        api.order([f"enable health {_full(row.service, row.name)}" for row in rows if not row.watched])

    def run_round(self, services: Mapping[str, HeldService], now_s: float) -> list[str]:
        """Run one round and return what was done, for the log. `now_s` is on a monotonic clock."""
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
            for name in self._returned(api, row.service):
                commands.append(f"set server {_full(row.service, name)} health down")
                done.append(f"still ejected service={row.service} replica={name}")
            if row.queued and not row.usable:
                # Requests queued in a backend stay there when its last replica goes, until a backup server comes up.
                activator = _full(row.service, ACTIVATOR)
                commands += [f"set server {activator} state maint", f"set server {activator} state ready"]
                done.append(f"moved to the activator service={row.service} requests={row.queued}")
        try:
            api.order(commands)
        except RefusedError as error:
            done.append(str(error))  # a replica may have been removed meanwhile; the next round sees the new state
        return done

    def treat(
        self, service: HeldService, sick: Iterable[runtime.ServerRow], now_s: float, done: list[str]
    ) -> list[str]:
        """Commands to HAProxy for the unhealthy replicas of a service; what they do is appended to `done`."""
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
                # Down again: checks that passed meanwhile have brought it back, and it would stay up unchecked.
                commands += [f"disable health {full}", f"set server {full} health down"]
                done.append(f"ejected service={service.name} replica={row.name} ({row.remark})")
        return commands

    def _returned(self, api: RuntimeApi, service: str) -> list[str]:
        """The ejected replicas that are up: one that a check which was under way has brought back.

        HAProxy asks for `rise` passes only of replicas whose checks are enabled.
        """
        out = self._ejections.out(service)
        rows = runtime.server_states(api.ask(f"show servers state {BACKEND_PREFIX}{service}")) if out else []
        return [row.name for row in rows if row.name in out and row.state == "up" and not row.watched]

    def _listed(self, service: str) -> int:
        if service not in self._replicas:
            self._replicas[service] = ReadyReplicas(EndpointFiles(self.files.endpoints), service)
        return len(self._replicas[service].ready())


def _full(service: str, name: str) -> str:
    return f"{BACKEND_PREFIX}{service}/{name}"
