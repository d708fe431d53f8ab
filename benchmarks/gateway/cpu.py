"""CPU time per request: the gateway with all its features, a bare HAProxy, an aiohttp proxy, in turns.

2 KB POST with `model` behind the messages as OpenAI's client writes it, 1 KB reply, 32 connections of wrk. The gateway
checks one of 1,000 hashed keys, finds the service by `model` among 100, chooses the replica with the fewest outstanding
requests, speaks TLS with it and writes its access log; `limited` also holds the key to a quota and to some of
the services. The bare HAProxy relays and logs nothing; `haproxy_tls` is one that asks the replicas for their
certificates as the gateway does, and `unproven` the gateway without that, with all its other features.

The proxies have a CPU to themselves, and replicas, load and activator have the others: else whoever shares a cache with
whom changes from one second to the next.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import click

from benchmarks.gateway.upstream import free_port, haproxy, one_cpu_less, upstream
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, ServiceSettings, Trust, digest_of
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.model import Endpoint
from inference_gateway.replicas.identity import Authority

_BODY = json.dumps({"messages": [{"role": "user", "content": "y" * 1930}], "max_tokens": 64, "model": "service-50"})
_CONNECTIONS = 32


def measure(directory: Path, rounds: int, seconds: int) -> dict[str, float]:
    """Microseconds of CPU per request of each, and the ratios of the medians' rounds."""
    if shutil.which("wrk") is None:
        raise click.ClickException("wrk, which sends the requests, is not installed; on Debian: apt-get install wrk")
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "post.lua"
    script.write_text(
        f"wrk.method='POST'\nwrk.body=[==[{_BODY}]==]\nwrk.headers['Content-Type']='application/json'\n"
        "wrk.headers['Authorization']='Bearer key-500'\n"
    )
    with ExitStack() as stack:
        proxy_cpu = stack.enter_context(one_cpu_less())
        backs = [stack.enter_context(upstream(_made(directory / f"up{index}"))) for index in range(2)]
        authority = Authority.of(directory / "identity")
        replicas = [stack.enter_context(upstream(_made(directory / f"tls{index}"), authority)) for index in range(2)]
        trust = authority.trust
        proxies = {
            "haproxy": stack.enter_context(_bare(_made(directory / "bare"), backs)),
            "haproxy_tls": stack.enter_context(_bare(_made(directory / "bare-tls"), replicas, trust)),
            "gateway": stack.enter_context(_gateway(directory / "gateway", replicas, _keys(), trust)),
            "unproven": stack.enter_context(_gateway(directory / "unproven", backs, _keys(), None)),
            "limited": stack.enter_context(
                _gateway(directory / "limited", replicas, _keys(10**9, ("service-50",)), trust)
            ),
            "aiohttp": stack.enter_context(_aiohttp([back.port for back in backs])),
        }
        costs: dict[str, list[float]] = {name: [] for name in proxies}
        rates: dict[str, list[float]] = {name: [] for name in proxies}
        for port, pid in proxies.values():
            os.sched_setaffinity(pid, {proxy_cpu})
            _load(port, script, 1)
        for _ in range(rounds):
            for name, (port, pid) in proxies.items():
                before_s = _cpu_s(pid)
                requests, rate = _load(port, script, seconds)
                costs[name].append((_cpu_s(pid) - before_s) / requests * 1e6)
                rates[name].append(rate)
    figures = {f"cpu_us_per_request_{name}": median(values) for name, values in costs.items()}
    figures |= {f"requests_per_s_{name}": median(values) for name, values in rates.items()}
    ratios = [ours / theirs for ours, theirs in zip(costs["limited"], costs["haproxy"], strict=True)]
    figures["cpu_ratio_limited_vs_haproxy"] = median(ratios)
    ratios = [ours / theirs for ours, theirs in zip(costs["unproven"], costs["haproxy"], strict=True)]
    figures["cpu_ratio_unproven_vs_haproxy"] = median(ratios)
    for other in ("haproxy", "haproxy_tls", "aiohttp"):
        ratios = [ours / theirs for ours, theirs in zip(costs["gateway"], costs[other], strict=True)]
        figures[f"cpu_ratio_vs_{other}"] = median(ratios)
    return figures


@contextmanager
def _bare(directory: Path, backs: list[Endpoint], trust: Trust | None = None) -> Iterator[tuple[int, int]]:
    proof = ""
    if trust:
        (directory / "authority.pem").write_text(trust.authority)
        (directory / "gateway.pem").write_text(trust.certificate)
        proof = f" ssl verify required ca-file {directory}/authority.pem crt {directory}/gateway.pem verifyhost "
    with free_port() as port:
        servers = "".join(f"  server {back.name} {back.address}{proof}{back.name if proof else ''}\n" for back in backs)
        sections = (
            f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\nbackend b\n  balance leastconn\n{servers}"
        )
        with haproxy(directory, "bare", sections) as pid:
            yield port, pid


def _keys(requests_per_minute: int | None = None, services: tuple[str, ...] = ()) -> tuple[ApiKey, ...]:
    return tuple(
        ApiKey(f"key-{index}", digest_of(f"key-{index}"), services, requests_per_minute) for index in range(1000)
    )


@contextmanager
def _gateway(
    directory: Path, replicas: list[Endpoint], keys: tuple[ApiKey, ...], trust: Trust | None
) -> Iterator[tuple[int, int]]:
    services = tuple(ServiceSettings(f"service-{index}") for index in range(100))
    with free_port() as port:
        plane = HaproxyDataPlane(GatewaySettings(directory, port, services=services, keys=keys, trust=trust))
        plane.start()
        try:
            for replica in replicas:
                plane.add("service-50", replica)
            yield port, HaproxyStatistics(plane.files).workers().current
        finally:
            plane.stop(grace_s=0)


@contextmanager
def _aiohttp(backs: list[int]) -> Iterator[tuple[int, int]]:
    with free_port() as port:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gateway.aiohttp_proxy", str(port), *map(str, backs)]
        )
        try:
            time.sleep(2)
            yield port, child.pid
        finally:
            child.kill()
            child.wait()


def _load(port: int, script: Path, seconds: int) -> tuple[int, float]:
    """Requests done and requests per second. Raises `RuntimeError` if any failed."""
    argv = ["wrk", "-t1", f"-c{_CONNECTIONS}", f"-d{seconds}s", "-s", str(script)]
    done = subprocess.run(
        [*argv, f"http://127.0.0.1:{port}/v1/chat/completions"], capture_output=True, text=True, check=True
    )
    found = re.search(r"(\d+) requests in", done.stdout)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if found is None or rate is None or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(f"the load on port {port} failed: {done.stdout}")
    return int(found[1]), float(rate[1])


def _cpu_s(pid: int) -> float:
    """Seconds on a CPU so far, of one thread: each proxy here has one."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
