"""The activator: holds requests of services without a ready replica, and answers requests to the gateway itself.

Its process is `python -m inference_gateway.activator.server DIRECTORY`; it also runs the health loop.

HAProxy adds headers, which it removes from clients' requests, to requests for a service and to those whose service it
does not know yet; requests without them are for the gateway itself. `/state` can be reached only on the Unix socket,
because HAProxy forwards no such path without these headers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from inference_gateway.activator import batches
from inference_gateway.activator.holding import FullError, GivenUpError, Waiting
from inference_gateway.activator.relay import (
    LIMIT,
    LONGEST,
    REFUSED,
    SERVICE,
    BodyRouter,
    BrokenError,
    Onward,
    UnreachableError,
    client,
    in_time,
    late,
    problem,
    relay,
)
from inference_gateway.dataplane import endpoints
from inference_gateway.dataplane.endpoints import EndpointFiles, HeldService, ReadyReplicas, read_services, read_starts
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.health import HealthLoop
from inference_gateway.dataplane.process import AccessLogWriter, opened_pipe
from inference_gateway.dataplane.settings import BatchSettings, client_context
from inference_gateway.dataplane.statistics import DataPlaneCollector, HaproxyStatistics, exposition
from inference_gateway.errors import ActivatorError, NotRunningError
from inference_gateway.model import StartForecast
from inference_gateway.slow_bodies import SlowBodyError

_LOG = logging.getLogger("explsched.gateway.activator")
_ONLY, _KEY = "x-gateway-only", "x-gateway-key"
"""Headers set by HAProxy on a request for the list of models: its service and its key."""
_BATCHES = "x-gateway-batches"
"""Header set by HAProxy on a request about files or batches."""
_MODELS = "/v1/models"


class Activator:
    """The queues of all services. `metrics` returns the text of /metrics; it is called in a thread."""

    def __init__(self, files: Files, metrics: Callable[[Mapping[str, Waiting]], str]) -> None:
        self.lines: dict[str, Waiting] = {}
        self._files = files
        self._metrics = metrics
        self._service_of: dict[str, str] = {}
        self._context: ssl.SSLContext | None = None
        self._session: aiohttp.ClientSession | None = None
        self._again: BodyRouter | None = None

    def application(self) -> web.Application:
        """The web application, with clients to the replicas and to HAProxy."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._serve)
        application.cleanup_ctx.append(self._with_client)
        return application

    def update(self, known: Mapping[str, HeldService]) -> None:
        """Take new services and limits; the queue of a removed service is dropped after its last request."""
        for name, service in known.items():
            line = self.lines.get(name)
            if line is None:
                replicas = ReadyReplicas(EndpointFiles(self._files.endpoints), name)
                self.lines[name] = Waiting(service, replicas.ready, self._announcer(name))
            else:
                line.service = service
        for name in self.lines.keys() - known.keys():
            if not self.lines[name].waiting and not self.lines[name].relaying:
                del self.lines[name]
        self._service_of = {model: name for name, service in known.items() for model in service.models}

    def read_services(self) -> None:
        """`update` from the data plane's files. Raises `ActivatorError`."""
        known = read_services(self._files.services)
        self.update(known)
        starts = read_starts(self._files.starts)
        for name, line in self.lines.items():
            forecast = starts.get(name, StartForecast(line.service.retry_after_s))
            # Nobody starts replicas of a service that a reload has removed.
            line.expect(forecast if name in known else replace(forecast, given_up=True))

    def _announcer(self, service: str) -> Callable[[int], None]:
        def announce(waiting: int) -> None:
            heard = endpoints.send(self._files.control_socket, endpoints.Wake(service, waiting))
            _LOG.info(
                "cold start service=%s waiting=%d control_plane=%s",
                service,
                waiting,
                "notified" if heard else "unreachable",
            )

        return announce

    async def _with_client(self, _: web.Application) -> AsyncIterator[None]:
        self._context = self._replicas_context()
        async with client(context=self._context) as self._session, client(self._files.again_socket) as haproxy:
            self._again = BodyRouter(haproxy, self.service)
            yield

    def _replicas_context(self) -> ssl.SSLContext | None:
        """The TLS context for replicas; None where the data plane uses plain HTTP."""
        files = self._files
        return client_context(files.authority, files.gateway_certificate) if files.authority.exists() else None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        reads = request.method in ("GET", "HEAD")
        if reads and request.path.startswith(_MODELS):
            models = self._models(request.headers.get(_ONLY, ""), request.headers.get(_KEY, ""))
            return _listed(models, request.path.removeprefix(_MODELS).removeprefix("/"))
        name = request.headers.get(SERVICE)
        if name is not None:
            return await self._hold(name.partition("/")[0], request)
        if LIMIT in request.headers and self._again is not None:
            return await self._again.ask(request)
        if _BATCHES in request.headers:
            settings = msgspec.json.decode(self._files.batches.read_bytes(), type=BatchSettings | None, dec_hook=_path)
            if settings is not None:
                return await batches.answer(request, settings, request.headers.get(_KEY, ""))
        if reads and request.path == "/metrics":
            text = await asyncio.to_thread(self._metrics, dict(self.lines))
            return web.Response(text=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})
        if reads and request.path == "/state":
            state = {name: line.state() for name, line in self.lines.items()}
            return web.Response(body=msgspec.json.encode(state), content_type="application/json")
        return problem(404, "no such path")

    def _models(self, service: str, key: str) -> list[dict[str, object]]:
        """OpenAI's list of models, of one service or all, as far as the key may use them. No replica is asked."""
        allowed = self._allowed(key)
        return [
            {
                "id": model,
                "object": "model",
                "created": 0,
                "owned_by": line.service.name,
                **({"parent": line.service.models[0]} if model in line.service.adapters else {}),
            }
            for name, line in self.lines.items()
            if service in ("", name) and (allowed is None or name in allowed)
            for model in line.service.models
        ]

    def _allowed(self, key: str) -> frozenset[str] | None:
        """The services that a key may use, None for all; from HAProxy's own maps, so that both decide alike."""
        if not any(line.startswith(f"{key} ") for line in _map_lines(self._files.restricted)):
            return None
        granted = (line.removesuffix(" 1\n").partition("/") for line in _map_lines(self._files.grants))
        return frozenset(service for owner, _, service in granted if owner == key)

    async def _hold(self, name: str, request: web.Request) -> web.StreamResponse:
        line = self.line(name)
        if line is None or self._session is None:
            return problem(404, "no such service")
        deadline_s = asyncio.get_running_loop().time() + line.service.deadline_s
        while True:
            retry_after = {"Retry-After": str(line.starts.retry_after_s)}
            try:
                endpoint = await line.acquire(deadline_s)
            except GivenUpError:
                return _refused("no replica of this service will start", retry_after)
            except FullError:
                return _refused("too many requests are waiting for a replica to start", retry_after)
            except TimeoutError:
                return _refused("no replica started in time", retry_after)
            try:
                body = in_time(request.content) if request.can_read_body else None
                scheme, proven = ("https", endpoint.name) if self._context else ("http", None)
                onward = Onward(f"{scheme}://{endpoint.address}", body, line.service.response_timeout_s, proven)
                return await relay(self._session, request, onward)
            except UnreachableError as error:
                line.avoid(endpoint)
                _LOG.warning("unreachable service=%s replica=%s: %s", name, endpoint.name, error)
            except SlowBodyError:
                return late()
            except BrokenError as error:
                _LOG.warning("broke off service=%s replica=%s: %s", name, endpoint.name, error)
                return problem(502, "the replica broke off or gave no valid answer")
            finally:
                line.release(endpoint)

    def line(self, name: str) -> Waiting | None:
        """The queue of a service, None if unknown. The file is read again for one that was added just now."""
        if name not in self.lines:
            self._reread_services()
        return self.lines.get(name)

    def service(self, model: str) -> str | None:
        """The service of a model, None if unknown. The file is read again for one that was added just now."""
        if model not in self._service_of:
            self._reread_services()
        return self._service_of.get(model)

    def _reread_services(self) -> None:
        try:
            self.read_services()
        except ActivatorError:
            _LOG.exception("services cannot be read; those known before stay in force")


def _refused(message: str, headers: Mapping[str, str]) -> web.Response:
    """A final 503. HAProxy makes it one: what comes as 503 it may send here again, to wait for as long once more."""
    answer = problem(503, message, {**headers, REFUSED: "1"})
    answer.set_status(504)
    return answer


def _listed(models: list[dict[str, object]], name: str) -> web.Response:
    """The list of models, or the entry of this name."""
    if not name:
        return web.json_response({"object": "list", "data": models})
    found = next((model for model in models if model["id"] == name), None)
    return problem(404, "no such model: GET /v1/models lists the models") if found is None else web.json_response(found)


def _path(kind: type, text: object) -> object:
    return Path(str(text)) if kind is Path else text


def _map_lines(path: Path) -> list[str]:
    """The lines of one of HAProxy's maps; empty if the file does not exist."""
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


ROUND_S = 1.0


def main() -> None:
    """Serve until SIGTERM; requests in flight get a minute to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    asyncio.run(_serve(Files(Path(sys.argv[1]))))


async def _serve(files: Files) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    reading = HaproxyStatistics(files)
    writer = AccessLogWriter(opened_pipe(files.access_pipe), files.access_log)
    recording = asyncio.create_task(asyncio.to_thread(writer.run))

    def metrics(lines: Mapping[str, Waiting]) -> str:
        state = {name: line.state() for name, line in lines.items()}
        traffic = reading.traffic(sorted(lines), state)
        cold_starts = [(name, line.cold_starts) for name, line in lines.items()]
        lost = (("disk", writer.lost_lines), ("pipe", reading.dropped_logs()))
        text = exposition(DataPlaneCollector(traffic, reading.servers(state), cold_starts, lost))
        added = files.control_metrics.read_text(encoding="utf-8") if files.control_metrics.exists() else ""
        return text + added

    activator = Activator(files, metrics)
    activator.read_services()
    os.umask(0o077)
    runner = web.AppRunner(
        activator.application(),
        auto_decompress=False,  # bodies are relayed as they came
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=60.0,
        keepalive_timeout=75.0,
        max_line_size=LONGEST,
        max_field_size=LONGEST,
    )
    await runner.setup()
    await web.UnixSite(runner, str(files.activator_socket), backlog=4096).start()
    files.activator_pid.write_text(str(os.getpid()), encoding="ascii")
    checking = asyncio.create_task(check_health(files, activator))
    await ending.wait()
    checking.cancel()
    await runner.cleanup()
    writer.end()
    await recording


async def check_health(files: Files, activator: Activator) -> None:
    """Run the health loop once a second, for ever. An error ends one round, not the activator."""
    health_loop = HealthLoop(files)
    resumed = False
    trouble = ""
    while True:
        try:
            activator.read_services()
            if not resumed:
                await asyncio.to_thread(health_loop.resume)
                resumed = True
            held = {name: line.service for name, line in activator.lines.items()}
            for line in await asyncio.to_thread(health_loop.run_round, held, time.monotonic()):
                _LOG.info("%s", line)
            trouble = ""
        except NotRunningError as error:
            if trouble != str(error):  # once, not every second
                trouble = str(error)
                _LOG.warning("%s", error)
        except Exception:
            # HAProxy may end in the midst of an answer, which is then understood by none of those who read it.
            _LOG.exception("this round of health checks failed")
        await asyncio.sleep(ROUND_S)


if __name__ == "__main__":
    main()
