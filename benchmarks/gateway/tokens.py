"""Tokens as the gateway counts them against the server's own count: whole answers, streams, clients that leave, kills.

Two replicas as they run in jobs, each a relay with the bundled server behind it. Of ten requests four are plain, three
are streams with `usage`, one is a stream without, and the clients of two leave in the middle. HAProxy is killed with
SIGKILL twice on the way, with all that it carries. The server counts a token when it has written it, and a prompt when
its answer says so: where it does not, the relay counts events.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.gateway.upstream import free_port
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, ServiceSettings, digest_of
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import Endpoint
from inference_gateway.model_server import KEY_VARIABLE
from inference_gateway.replicas import reports, submission
from inference_gateway.replicas.identity import Authority
from inference_gateway.replicas.reports import Tokens

_SERVICE = "chat"
_KEYS = tuple(f"key-{index}" for index in range(4))
_AT_ONCE = 32
_PATIENCE_S = 60.0
_REPLICAS = ("chat-1", "chat-2")
_STREAMS_FROM, _WITHOUT_USAGE = 4, 7
_KILLS = 2
_TOKEN_MS = 2
_REPORTED_S = 5.0
"""Longer than between two reports of a relay."""


def measure(directory: Path, requests: int) -> dict[str, float]:
    """The sums of both counts over so many requests, and how many were whole, left and cut."""
    paths = GatewayPaths(directory / "state")
    directory.mkdir()
    paths.make()
    authority = Authority.of(paths.identity)
    with ExitStack() as stack:
        port = stack.enter_context(free_port())
        keys = tuple(ApiKey(name, digest_of(name)) for name in _KEYS)
        services = (ServiceSettings(_SERVICE),)
        settings = GatewaySettings(directory / "run", port, services=services, keys=keys, trust=authority.trust)
        plane = HaproxyDataPlane(settings)
        stack.callback(plane.stop, grace_s=0)
        plane.start()
        ports = [_replica(stack, plane, paths, authority, name) for name in _REPLICAS]
        ends = asyncio.run(_load(plane, requests))
        servers = [_settled(back) for back in ports]
        counted = [_counted(paths.replica(name)) for name in _REPLICAS]
    told = sum(counted, Tokens())
    return {
        "tokens_requests": float(requests),
        **{f"tokens_requests_{end}": float(ends.count(end)) for end in ("whole", "left", "cut")},
        "tokens_requests_served": float(sum(state.requests for state in servers)),
        "tokens_requests_counted": float(told.requests),
        "tokens_completion_served": float(sum(state.completion_tokens for state in servers)),
        "tokens_completion_counted": float(told.completion),
        "tokens_prompt_served": float(sum(state.prompt_tokens for state in servers)),
        "tokens_prompt_counted": float(told.prompt),
    }


def _replica(stack: ExitStack, plane: HaproxyDataPlane, paths: GatewayPaths, authority: Authority, name: str) -> int:
    """Start a replica as its job does, and give it requests; the port of the server behind it."""
    submission.prepare(name, paths, "", authority)
    directory = paths.replica(name)
    told = directory / "port"
    wrapper = [sys.executable, "-m", "inference_gateway.replicas.serve", "--directory", str(directory)]
    options = ["--gateway", "127.0.0.1", "--key-variable", KEY_VARIABLE, "--grace-s", "0", "--"]
    server = f"exec {sys.executable} -m inference_gateway.model_server --port {{port}} --token-ms {_TOKEN_MS}"
    command = ["sh", "-c", f"echo {{port}} > {told}.new; mv {told}.new {told}; {server}"]
    process = subprocess.Popen([*wrapper, *options, *command], start_new_session=True)
    stack.callback(process.wait)
    stack.callback(os.killpg, process.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _PATIENCE_S
    while not told.exists() or (place := reports.registered(directory)) is None or not _answers(told):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{name} does not start")
        time.sleep(0.1)
    plane.add(_SERVICE, Endpoint(name, place.host, place.port, _AT_ONCE))
    return int(told.read_text())


def _answers(told: Path) -> bool:
    try:
        _state(int(told.read_text()))
    except OSError:
        return False
    return True


class State(msgspec.Struct):
    """What a server has counted."""

    requests: int
    in_flight: int
    prompt_tokens: int
    completion_tokens: int


def _state(port: int) -> State:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as answer:
        return msgspec.json.decode(answer.read(), type=State)


def _settled(port: int) -> State:
    """Once nothing is in flight any more. Raises `RuntimeError`."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while (state := _state(port)).in_flight:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{state.in_flight} requests do not end")
        time.sleep(0.5)
    return state


def _counted(directory: Path) -> Tokens:
    """What a relay has reported once it reports nothing new."""
    found: Tokens | None = None
    while True:
        report = reports.usage_of(directory)
        now = sum(report.by_key.values(), Tokens()) if report else Tokens()
        if now == found:
            return now
        found = now
        time.sleep(_REPORTED_S)


async def _load(plane: HaproxyDataPlane, requests: int) -> list[str]:
    """How each request ended: `whole`, `left` by its client, or `cut`."""
    url = f"http://127.0.0.1:{plane.settings.port}/v1/chat/completions"
    numbers = iter(range(requests))
    ends: list[str] = []
    killed = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE_S)) as session:

        async def client() -> None:
            for number in numbers:
                ends.append(await _ask_until_taken(session, url, number))  # noqa: PERF401  kills look how far it is

        clients = [asyncio.create_task(client()) for _ in range(_AT_ONCE)]
        while not all(task.done() for task in clients):
            if killed < _KILLS and len(ends) >= requests * (killed + 1) // (_KILLS + 1):
                killed += 1
                os.kill(HaproxyStatistics(plane.files).workers().current, signal.SIGKILL)
                while plane.alive():
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(plane.start)
            await asyncio.sleep(0.05)
        await asyncio.gather(*clients)
    return ends


async def _ask_until_taken(session: aiohttp.ClientSession, url: str, number: int) -> str:
    """Ask again while nobody listens: HAProxy is being started."""
    while True:
        try:
            return await _ask(session, url, number)
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.2)
        except (aiohttp.ClientError, TimeoutError):
            return "cut"


async def _ask(session: aiohttp.ClientSession, url: str, number: int) -> str:
    kind = number % 10
    body: dict[str, object] = {"model": _SERVICE, "max_tokens": 8 + number % 29, "messages": [{"content": "a b c"}]}
    if kind >= _STREAMS_FROM:
        body["stream"] = True
    if _STREAMS_FROM <= kind < _WITHOUT_USAGE:
        body["stream_options"] = {"include_usage": True}
    headers = {"authorization": f"Bearer {_KEYS[number % len(_KEYS)]}"}
    async with session.post(url, json=body, headers=headers) as answer:
        answer.raise_for_status()
        if kind > _WITHOUT_USAGE:
            for _ in range(2 * (1 + number % 5)):  # lines: an event and an empty one
                await answer.content.readline()
            answer.close()
            return "left"
        await answer.read()
        return "whole"
