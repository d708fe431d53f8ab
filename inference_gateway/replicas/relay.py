"""The listener of a replica: takes requests from the gateway alone, and passes them to the server behind it.

The relay owns the replica's port, which it shares with nobody for as long as the job runs. The server listens on a port
of the loopback address that any user of the node might take, before the server has it or when it has lost it. So a
connection is used only once it is certain that it ends at a socket of our own user.

Each request on a connection is passed on with the key of the server: HTTP/1.1 as HAProxy writes it (RFC 9112), heads
changed, bodies copied. HAProxy has refused what is ambiguous. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from inference_gateway.queueing import ReadingTimer
from inference_gateway.replicas.ports import Taken
from inference_gateway.replicas.reports import AnswerReader, BodyReader, UsageCounter

LONGEST_HEAD = 1 << 20
PART = 1 << 16
_REPLACED = frozenset({b"authorization", b"http2-settings"})
_SERVICE_AND_KEY = b"x-gateway-service"
_OF_THE_GATEWAY = b"x-gateway-"
"""Headers between the gateway's own parts; a client's are no server's business either."""


class MalformedError(Exception):
    """These bytes are no request."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first part of a request: its bytes with the key, and what follows it.

    `client` names the client's key; None for what is no client's, such as a check.
    """

    text: bytes
    client: str | None
    length: int
    chunked: bool
    websocket: bool
    expects: bool


def head_with_key(received: bytes, key: str) -> Head:
    """The head as the server gets it: with its key instead of any other, and upgraded to nothing but a WebSocket.

    After an upgrade the paths that a client asks for would be seen by nobody. Raises `MalformedError`.
    """
    start, *lines = received.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields = [(line.partition(b":")[0].strip().lower(), line.partition(b":")[2].strip(), line) for line in lines]
    websocket = any(name == b"upgrade" and value.lower() == b"websocket" for name, value, _ in fields)
    dropped = _REPLACED if websocket else _REPLACED | {b"upgrade"}
    kept = [line for name, _, line in fields if name not in dropped and not name.startswith(_OF_THE_GATEWAY)]
    lengths = {value for name, value, _ in fields if name == b"content-length"}
    chunked = any(name == b"transfer-encoding" and value.lower() == b"chunked" for name, value, _ in fields)
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths) or (chunked and lengths):
        raise MalformedError("the length of a request's body is not clear")
    text = b"\r\n".join([start, *kept, b"authorization: Bearer " + key.encode("ascii"), b"", b""])
    expects = any(name == b"expect" for name, _, _ in fields)
    marks = [value.decode("latin-1") for name, value, _ in fields if name == _SERVICE_AND_KEY]
    client = marks[0].partition("/")[2] if marks else None
    return Head(text, client, int(next(iter(lengths), b"0")), chunked, websocket, expects)


async def pass_on(
    requests: asyncio.StreamReader,
    reach: Callable[[], Awaitable[asyncio.StreamWriter]],
    key: str,
    next_status: Callable[[], asyncio.Future[int]],
    begin: Callable[[str | None], None],
    sent: Callable[[BodyReader], None],
) -> None:
    """Pass on all requests until the gateway closes the connection.

    `reach` gives the server's connection for each request; `next_status` is asked before one is passed on, for the
    status of its answer; `begin` is told whose it is, `sent` when all of it has been passed on.

    Raises:
        MalformedError: what came is no request.
        ConnectionError: an end has gone.

    """
    while True:
        try:
            received = await requests.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ConnectionResetError("the gateway disconnected within a request") from error
            return
        except asyncio.LimitOverrunError as error:
            raise MalformedError(f"a head of more than {LONGEST_HEAD} bytes") from error
        head = head_with_key(received, key)
        server = await reach()
        begin(head.client)
        status = next_status() if head.websocket else None
        body = BodyReader()
        try:
            if head.chunked:
                server.write(head.text)
                await _copy_chunks(requests, server, body)
            elif head.expects:  # its body comes when the server has asked for it
                server.write(head.text)
                await _copy(requests, server, head.length, body)
            else:
                # In one packet where it fits: a server that answers a head at once would not wait for the body.
                first = await requests.read(min(head.length, PART)) if head.length else b""
                body.read(first)
                server.write(head.text + first)
                await _copy(requests, server, head.length - len(first), body)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionResetError("the gateway disconnected within a body") from error
        await server.drain()
        sent(body)
        if status is not None and await status == HTTPStatus.SWITCHING_PROTOCOLS:
            await copy_all(requests, server)
            return


async def copy_all(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy bytes as they come, until the source ends. Raises `ConnectionError`."""
    while part := await source.read(PART):
        sink.write(part)
        await sink.drain()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int, body: BodyReader) -> None:
    while length:
        part = await source.read(min(length, PART))
        if not part:
            raise asyncio.IncompleteReadError(part, length)
        body.read(part)
        sink.write(part)
        await sink.drain()
        length -= len(part)


async def _copy_chunks(source: asyncio.StreamReader, sink: asyncio.StreamWriter, body: BodyReader) -> None:
    while True:
        line = await source.readuntil(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError as error:
            raise MalformedError(f"not the size of a chunk: {line[:20]!r}") from error
        sink.write(line)
        if size == 0:
            break
        await _copy(source, sink, size + 2, body)
    while line != b"\r\n":  # trailers
        line = await source.readuntil(b"\r\n")
        sink.write(line)


_HANDSHAKE_S = 10.0
_SHUTDOWN_S = 2.0
_BACKLOG = 1024
_PAUSE_S = 0.1
_REST_S = 2.0
"""A server that goes on for longer after the gateway has gone loses its connection."""
FRESH_S = 1.0
"""Servers close what is idle, gunicorn after 2 s, uvicorn after 5: after this time a request gets a new connection."""


class StrangerError(Exception):
    """Somebody else has the server's port."""


def server_context(identity: Path, authority: Path) -> ssl.SSLContext:
    """How a replica answers: with its own certificate, and only to the gateway. Raises `OSError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(identity)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class Relay:
    """The connections between the gateway and the server on a port. `look` tells who has the port now.

    A request that comes `fresh_s` after the last answer of its connection gets a new one to the server.
    """

    def __init__(self, port: int, key: str, look: Callable[[int], Taken], fresh_s: float = FRESH_S) -> None:
        self.usage = UsageCounter()
        self.reading = ReadingTimer()
        self._port = port
        self._key = key
        self._fresh_s = fresh_s
        self._listings = _PortChecks(lambda: look(port))
        self._known: Taken | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Take connections from now on."""
        listener.setblocking(False)  # noqa: FBT003  as asyncio wants it
        listener.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept(listener, context))

    async def end(self, within_s: float) -> None:
        """Take no more connections, and give those that are open this long to end."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=within_s)

    async def check(self) -> Taken:
        """Who has the server's port: the server, or nobody yet.

        Raises:
            StrangerError: somebody else has it.
            OSError: nobody can say.

        """
        found = await self._listings.next()
        strangers = sorted({listener.uid for listener in found.listeners if not listener.ours})
        if strangers:
            users = ", ".join(map(str, strangers))
            raise StrangerError(f"port {self._port} of {found.address} is taken by another user (uid {users})")
        return found

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, _ = await loop.sock_accept(listener)
            except OSError:  # no more files: some connection will end
                await asyncio.sleep(_PAUSE_S)
                continue
            task = loop.create_task(self._serve(link, context))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, link: socket.socket, context: ssl.SSLContext) -> None:
        """One connection.

        Without a server behind it it ends before the handshake: the gateway has sent nothing then, knows that, and
        asks another replica.
        """
        try:
            from_server, to_server = await self._connect()
        except (OSError, StrangerError):
            link.close()
            return
        try:
            reader, writer = await _handshake(link, context)
        except OSError:
            to_server.transport.abort()
            return
        answers = _Answers(writer, self.usage, self.reading)
        server = _ServerLink(self._connect, answers, self._fresh_s, (from_server, to_server))
        tasks = [
            asyncio.create_task(
                pass_on(reader, server.reach, self._key, answers.next_status, answers.begin, answers.sent)
            ),
            asyncio.create_task(server.copy()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await answers.count_rest(server.reader, server.writer)
        answers.begin(None)
        broken = any(isinstance(end, (OSError, MalformedError, StrangerError)) for end in ends)
        for stream in (server.writer, writer):
            if broken:
                stream.transport.abort()  # so that the other side does not take this for the end of an answer
            else:
                stream.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that ends at our own server.

        Who listened before it was made and listens after it has listened all the while, and while they listen nobody
        else gets their port. So the connection is theirs, however fast a stranger comes and goes.

        Raises:
            StrangerError: somebody else has the port.
            OSError: nobody has it, or whoever had it went.

        """
        before = self._known or await self.check()
        if not before.listeners:
            raise ConnectionRefusedError(f"no server listens on port {self._port} yet")
        reader, writer = await asyncio.open_connection(before.address, self._port, limit=PART)
        try:
            now = await self.check()
            self._known = now
            if not now.listeners or now.address != before.address or not now.listeners <= before.listeners:
                self._known = None
                raise ConnectionRefusedError(f"port {self._port} now belongs to another process")
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer


async def _handshake(link: socket.socket, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The connection once both ends have proved who they are. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LONGEST_HEAD)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, link, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S, ssl_shutdown_timeout=_SHUTDOWN_S
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _ServerLink:
    """The server's end of a connection from the gateway: another one when the server has closed it between requests.

    Servers close what is idle. HAProxy, which may send just then, does not see that, and shakes hands once for many
    requests, of many clients.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[_Streams]], answers: _Answers, fresh_s: float, streams: _Streams
    ) -> None:
        self.reader, self.writer = streams
        self._connect = connect
        self._answers = answers
        self._fresh_s = fresh_s
        self._renewing = asyncio.Lock()

    async def reach(self) -> asyncio.StreamWriter:
        """Where the next request goes. Raises as `Relay._connect`."""
        if self.reader.at_eof() or self._answers.idle_for(self._fresh_s):
            await self._renew(self.reader)
        async with self._renewing:
            return self.writer

    async def copy(self) -> None:
        """Copy answers until the server closes within one or right after it, or is gone. Raises as `Relay._connect`."""
        while True:
            reader = self.reader
            await self._answers.copy(reader)
            if reader is self.reader and not self._answers.idle_for(self._fresh_s):
                return
            await self._renew(reader)

    async def _renew(self, old: asyncio.StreamReader) -> None:
        """Replace this connection, unless that has been done, or a request has begun on it."""
        async with self._renewing:
            if self.reader is old and self._answers.idle_for(0):
                before = self.writer
                self.reader, self.writer = await self._connect()
                self._answers.idle_since_s = time.monotonic()
                before.close()


class _Answers:
    """What the server sends, copied to the gateway as it comes.

    Attributes:
        idle_since_s: when the last request had been answered, or the connection was made, on the monotonic clock.

    """

    def __init__(self, gateway: asyncio.StreamWriter, usage: UsageCounter, reading: ReadingTimer) -> None:
        self.idle_since_s = time.monotonic()
        self._sent = self._answered = True
        self._gateway = gateway
        self._usage = usage
        self._reading = reading
        self._status: asyncio.Future[int] | None = None
        self._client: str | None = None
        self._answer = AnswerReader()

    def idle_for(self, seconds: float) -> bool:
        """Whether all requests were sent and answered as a whole, for so long; unknown, so False, after a check."""
        return self._sent and self._answered and time.monotonic() - self.idle_since_s >= seconds

    def begin(self, client: str | None) -> None:
        """The answer so far is whole, or will never be; the next one is for this client, or for none."""
        self._end()
        self._client, self._sent, self._answered = client, False, False

    def _end(self) -> None:
        if self._client is not None:
            self._usage.add(self._client, self._answer.tokens())
        self._client, self._answer = None, AnswerReader()
        self._reading.end(self)

    def sent(self, body: BodyReader) -> None:
        """The server has all of the request now, and reads it. Where nothing streams its first token is not seen."""
        self._sent, self.idle_since_s = True, time.monotonic()
        if self._client is None or not body.size:
            return  # answered already, or nothing to read
        if body.streams:
            self._reading.begin(self, body.size, time.monotonic())
        else:
            self._reading.begin_unseen(self)

    async def count_rest(self, source: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """The gateway has gone: let the server know, and count what it had written by then."""
        if self._client is None:
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_REST_S):
                server.write_eof()  # a server takes that for the client's end, as it does a closed connection
                while part := await source.read(PART):
                    self._answer.read(part)

    def next_status(self) -> asyncio.Future[int]:
        """The status of the next answer: HAProxy sends a request only when the one before is answered."""
        self._status = asyncio.get_running_loop().create_future()
        return self._status

    async def copy(self, source: asyncio.StreamReader) -> None:
        """Copy all there is. Raises `OSError`."""
        while part := await source.read(PART):
            if self._status is not None:
                digits = part[9:12]  # of `HTTP/1.1 101 Switching Protocols`
                self._status.set_result(int(digits) if digits.isdigit() else 0)
                self._status = None
            if self._client is not None:
                self._answer.read(part)
                if self._answer.events:
                    self._reading.first(self, time.monotonic())
                if self._answer.ended:
                    self._end()  # the connection may be idle from now on for as long as the gateway keeps it
                    self._answered, self.idle_since_s = True, time.monotonic()
            self._gateway.write(part)
            await self._gateway.drain()


class _PortChecks:
    """Looks at the system's tables, which take milliseconds on a busy node: one at a time, in a thread."""

    def __init__(self, look: Callable[[], Taken]) -> None:
        self._look = look
        self._running: asyncio.Task[Taken] | None = None
        self._waiting: asyncio.Task[Taken] | None = None

    async def next(self) -> Taken:
        """A look that begins after this call. All who ask while one is under way share the one after it."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._after(self._running))
        return await asyncio.shield(self._waiting)

    async def _after(self, running: asyncio.Task[Taken] | None) -> Taken:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._waiting = self._waiting, None
        return await asyncio.to_thread(self._look)
