"""Relays a request and streams its answer back; and reads whole bodies where HAProxy cannot.

HAProxy searches only the part of a body that fits its buffer for the `model`, gives up on JSON nested 20 levels deep,
and cannot bound a body that tells no length (chunked, or some of HTTP/2). The activator then reads the whole body and
sends the request to HAProxy again, with its service, over a Unix socket: so queues, limits, retries and the access log
are the same as for all other requests.
"""

from __future__ import annotations

import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import StreamReader, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from inference_gateway.slow_bodies import BodyClock, SlowBodyError


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """An error answer in OpenAI's form."""
    body = {"error": {"message": message, "type": "gateway_error", "code": status}}
    return web.json_response(body, status=status, headers=headers)


def late() -> web.Response:
    """The answer to a request whose body came too slowly."""
    return problem(408, "the request did not arrive in time")


def is_compressed(request: web.Request) -> bool:
    """Whether the body is compressed. It is relayed as it came and never decompressed here."""
    return request.headers.get("content-encoding", "identity").lower() != "identity"


_CONNECT_S = 3.0
LONGEST = 1 << 16
"""HAProxy takes no longer head than its buffer; aiohttp by default no longer line than 8190 bytes."""
# Hop-by-hop headers (RFC 9110, section 7.6.1), and Expect, which the server in between has answered.
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect")
)
_OF_THE_GATEWAY = "x-gateway-"
"""Begins the names of HAProxy's own headers. A client that could remove its key from there might use everything."""


class UnreachableError(Exception):
    """The other end did not accept the connection, so it has seen nothing of the request."""


class BrokenError(Exception):
    """The other end accepted the request but sent no complete answer head."""


@dataclass(frozen=True, slots=True)
class Onward:
    """The destination of a relayed request: `origin` is SCHEME://HOST:PORT, `headers` replace those of the request.

    With HTTPS the other end must present a certificate for `name`.
    """

    origin: str
    body: AsyncIterable[bytes] | None
    response_timeout_s: float | None = None
    name: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def client(socket: Path | None = None, context: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A client for `relay`, over TCP or a Unix socket. It must be made within a running event loop and closed.

    `context` is the TLS context for HTTPS.
    """
    # Connections are not reused: the server may close an idle one just as a POST is sent.
    connector = (
        aiohttp.UnixConnector(str(socket), limit=0, force_close=True)
        if socket
        else aiohttp.TCPConnector(limit=0, force_close=True, ssl=context or True)
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),  # any other would send one client's cookies with the next one's request
        auto_decompress=False,
        max_line_size=LONGEST,
        max_field_size=LONGEST,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
    )


async def relay(session: aiohttp.ClientSession, request: web.Request, onward: Onward) -> web.StreamResponse:
    """Relay the request and stream the answer to the client.

    Cancelling it (the client has disconnected) aborts the relayed request. If the answer is cut off in the middle, the
    client's connection is aborted as well.

    Raises:
        UnreachableError: nothing was sent.
        BrokenError: the other end disconnected before its answer's head was complete, or exceeded the timeout.
        SlowBodyError: as the body does, before an answer has begun.

    """
    # A client may write the gateway's scheme and host before the path (RFC 9112, section 3.2.2).
    target = request.raw_path if request.raw_path.startswith("/") else request.rel_url.raw_path_qs
    url = URL(f"{onward.origin}{target}", encoded=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=onward.response_timeout_s)
    headers = _passed_on(request.headers)
    headers.update(onward.headers)
    try:
        async with session.request(
            request.method,
            url,
            headers=headers,
            skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
            data=onward.body,
            allow_redirects=False,
            timeout=timeout,
            server_hostname=onward.name,
        ) as answer:
            return await _answer(request, answer)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UnreachableError(str(error)) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        if isinstance(error.__cause__, SlowBodyError):
            raise error.__cause__ from error
        raise BrokenError(str(error) or type(error).__name__) from error


async def _answer(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers))
    await response.prepare(request)
    try:
        async for part in answer.content.iter_any():
            await response.write(part)
    except (aiohttp.ClientError, TimeoutError):
        # The status has been sent: aborting the connection is the only way left to signal the error.
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers without those that end here: some always, others if the client says so, but none of HAProxy's own."""
    named = {name.strip().lower() for value in headers.getall("connection", ()) for name in value.split(",")}
    ending = _HOP_BY_HOP | {name for name in named if not name.startswith(_OF_THE_GATEWAY)}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in ending)


_PART_BYTES = 256 * 1024


class TooLargeError(Exception):
    """The body exceeds its limit."""


class NoRoomError(Exception):
    """All bodies together would exceed their budget, or one key's its share."""


async def in_time(source: StreamReader) -> AsyncIterator[bytes]:
    """The parts of a body as they come. Raises `SlowBodyError`."""
    clock = BodyClock()
    while part := await clock.read(source.readany()):
        yield part


class _Named(msgspec.Struct):
    model: str


@dataclass(slots=True)
class Bodies:
    """The bodies in memory; together they hold `held_bytes`, at most `budget_bytes`. `held` is by key."""

    budget_bytes: int
    held: Counter[str] = field(default_factory=Counter)

    @property
    def held_bytes(self) -> int:
        """What all of them hold."""
        return self.held.total()

    @contextmanager
    def body(self, owner: str) -> Iterator[Body]:
        """An empty one of this key; what it holds is given back at the end."""
        body = Body(self, owner=owner)
        try:
            yield body
        finally:
            body.forget()


@dataclass(slots=True)
class Body:
    """One body: `receive` it, look for its `model`, send its `parts`."""

    bodies: Bodies
    content: bytearray = field(default_factory=bytearray)
    owner: str = ""

    async def receive(self, source: StreamReader, limit_bytes: int) -> None:
        """Read the whole body. A key's bodies may hold as much as is left free, and one body of `limit_bytes` always.

        Raises:
            TooLargeError: it is longer than `limit_bytes`.
            NoRoomError: the key's share, or the budget of all bodies, is used up.
            SlowBodyError: it arrived too slowly.

        """
        async for part in in_time(source):
            if len(self.content) + len(part) > limit_bytes:
                raise TooLargeError
            free = self.bodies.budget_bytes - self.bodies.held_bytes - len(part)
            if free < 0 or self.bodies.held[self.owner] + len(part) > max(free, limit_bytes):
                raise NoRoomError
            self.bodies.held[self.owner] += len(part)
            self.content += part

    def model(self) -> str | None:
        """The string `model` of the JSON object; None if the body is not such an object."""
        try:
            return msgspec.json.decode(self.content, type=_Named).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    async def parts(self) -> AsyncIterator[bytes]:
        """The body in parts, once; its memory is released after the last part."""
        for start in range(0, len(self.content), _PART_BYTES):
            yield bytes(self.content[start : start + _PART_BYTES])
        self.forget()

    def forget(self) -> None:
        """Release its memory."""
        self.bodies.held -= Counter({self.owner: len(self.content)})
        self.content = bytearray()


LIMIT = "x-gateway-body-limit"
"""Header set by HAProxy on requests whose body is to be read: its largest allowed size in bytes."""
ASKED = "x-gateway-asked"
"""Header set by HAProxy on these requests: the service or model that path or header name; else empty."""
SERVICE = "x-gateway-service"
_KEY, _CLIENT = "x-gateway-key", "x-gateway-client"
"""Headers set by HAProxy on these requests: the name of the key, empty without keys, and the client's address."""
REFUSED = "x-gateway-refused"
"""Header of an answer that HAProxy turns into one of status 503."""

_BUDGET_BYTES = 512 << 20
_RETRY_AFTER = {"Retry-After": "5"}
_LOG = logging.getLogger("explsched.gateway.activator")


@dataclass(slots=True)
class BodyRouter:
    """Reads whole bodies, and sends them to the service that the request asks for, else to that of the body's `model`.

    `service_of` maps a model to its service or None; `haproxy` is a client to HAProxy.
    """

    haproxy: aiohttp.ClientSession
    service_of: Callable[[str], str | None]
    bodies: Bodies = field(default_factory=lambda: Bodies(_BUDGET_BYTES))

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """The answer of the service's replica, or an error answer if the body is not usable."""
        limit_bytes = int(request.headers[LIMIT])
        owner = request.headers.get(_KEY, "") or request.headers.get(_CLIENT, "")
        with self.bodies.body(owner) as body:
            try:
                await body.receive(request.content, limit_bytes)
            except TooLargeError:
                return problem(413, f"the body is larger than {limit_bytes >> 20} MiB")
            except NoRoomError:
                return problem(503, "too many long bodies in transit", _RETRY_AFTER)
            except SlowBodyError:
                return late()
            asked = request.headers.get(ASKED)
            if not asked and is_compressed(request):
                return problem(400, "a compressed body is not searched for `model`: name it by path or as x-service")
            model = asked or body.model()
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
