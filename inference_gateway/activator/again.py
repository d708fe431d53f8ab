"""Requests whose `model` HAProxy did not find: the whole body is read, and HAProxy is asked again, by service.

HAProxy searches the part of a body that fits its buffer, and gives up on JSON nested 20 levels deep. The second request
goes to a Unix socket of HAProxy, so queues, limits, retries and the access log are the same as for all others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from inference_gateway.activator.bodies import Bodies, NoRoomError, TooLargeError
from inference_gateway.activator.problem import problem
from inference_gateway.activator.relay import BrokenError, Onward, UnreachableError, relay

LIMIT = "x-gateway-body-limit"
"""Marks these requests: the most bytes that a body may have. HAProxy sets it."""
SERVICE = "x-gateway-service"

_BUDGET_BYTES = 512 << 20
_RETRY_AFTER = {"Retry-After": "5"}
_LOG = logging.getLogger("explsched.gateway.activator")


@dataclass(slots=True)
class SecondAsking:
    """`service_of` gives the service of a model, None if there is none; `haproxy` is a client to HAProxy's socket."""

    haproxy: aiohttp.ClientSession
    service_of: Callable[[str], str | None]
    bodies: Bodies = field(default_factory=lambda: Bodies(_BUDGET_BYTES))

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """The answer of the service's replica, or what is wrong with the body."""
        limit_bytes = int(request.headers[LIMIT])
        with self.bodies.body() as body:
            try:
                await body.receive(request.content, limit_bytes)
            except TooLargeError:
                return problem(413, f"the body is larger than {limit_bytes >> 20} MiB")
            except NoRoomError:
                return problem(503, "too many long bodies are on their way", _RETRY_AFTER)
            except TimeoutError:
                return problem(408, "the request did not arrive in time")
            model = body.model()
            if model is None:
                return problem(400, "the body is no JSON object with a text `model`")
            service = self.service_of(model)
            if service is None:
                return problem(404, "no such model: GET /v1/models lists the models")
            headers = {SERVICE: service, "content-length": str(len(body.content))}
            try:
                return await relay(self.haproxy, request, Onward("http://haproxy", body.parts(), headers=headers))
            except UnreachableError as error:
                _LOG.warning("HAProxy does not take a long body: %s", error)
                return problem(503, "the gateway is busy", _RETRY_AFTER)
            except BrokenError as error:
                _LOG.warning("HAProxy broke off on a long body: %s", error)
                return problem(502, "the replica broke off or gave no valid answer")
