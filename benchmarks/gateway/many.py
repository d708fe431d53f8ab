"""1,000 services x 10 replicas in one gateway: how soon a change is in force, and the memory it takes.

"In force" is seen from outside: a request that the old state would have refused is answered by the new one.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.gateway.upstream import free_port, upstream
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import GatewaySettings, HealthSettings, ServiceSettings
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.model import Endpoint


def measure(directory: Path, services: int, replicas: int) -> dict[str, float]:
    """Seconds and MiB."""
    directory.mkdir(parents=True, exist_ok=True)
    health = HealthSettings(interval_s=10)
    known = tuple(ServiceSettings(f"service-{index}", cold_start_limit=0, health=health) for index in range(services))
    with upstream(directory) as replica, free_port() as port:
        back = replica.port
        settings = GatewaySettings(directory / "g", port, services=known, authentication="none")
        plane = HaproxyDataPlane(settings)
        figures = {"services": float(services), "replicas_each": float(replicas)}
        figures["start_s"] = _timed(plane.start)
        try:
            figures["add_all_s"] = _timed(lambda: _fill(plane, services, replicas, back))
            last = f"service-{services - 1}"
            figures["traffic_read_s"] = _timed(plane.traffic)
            figures["servers_read_s"] = _timed(plane.servers)
            figures["gateway_rss_mib"] = _rss_mib(HaproxyStatistics(plane.files).workers().current)
            figures["activator_rss_mib"] = _rss_mib(int(plane.files.activator_pid.read_text()))
            new = ServiceSettings("new", cold_start_limit=0, health=health)
            figures["reload_visible_s"] = _timed(
                lambda: _reload(plane, replace(settings, services=(*known, new)), port)
            )
            figures["change_visible_s"] = _timed(lambda: _add(plane, "new", back, port))
            figures["drain_visible_s"] = _timed(lambda: _drain_all(plane, last, replicas, port))
            figures["gateway_rss_after_reload_mib"] = _rss_mib(HaproxyStatistics(plane.files).workers().current)
        finally:
            plane.stop(grace_s=0)
    return figures


def _fill(plane: HaproxyDataPlane, services: int, replicas: int, back: int) -> None:
    for index in range(services):
        for number in range(replicas):
            plane.add(f"service-{index}", Endpoint(f"r{number}", "127.0.0.1", back, 8))


def _reload(plane: HaproxyDataPlane, settings: GatewaySettings, port: int) -> None:
    """Until the new service is known: 503 without replicas instead of 404."""
    plane.apply(settings)
    _until(lambda: _status(port, "new") == 503)


def _add(plane: HaproxyDataPlane, service: str, back: int, port: int) -> None:
    plane.add(service, Endpoint("r0", "127.0.0.1", back, 8))
    _until(lambda: _status(port, service) == 200)


def _drain_all(plane: HaproxyDataPlane, service: str, replicas: int, port: int) -> None:
    for number in range(replicas):
        plane.drain(service, f"r{number}")
    _until(lambda: _status(port, service) == 503)


def _status(port: int, service: str) -> int:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        link.request("POST", "/v1/chat/completions", json.dumps({"model": service}))
        return link.getresponse().status
    finally:
        link.close()


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError("the change is not in force after 60 s")
        time.sleep(0.005)


def _timed(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
