"""The relay of a replica: takes requests from the gateway only, and forwards them to the model server.

The relay owns the replica's port, which it shares with no other process while the job runs. The server listens on a
loopback port that any user of the node might bind before the server does, or after it has ended. So a connection is
used only once it is certain that it ends at a socket of our own user. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from inference_gateway.queueing import ReadingTimer
from inference_gateway.replicas.ports import Taken
from inference_gateway.replicas.reports import AnswerReader, BodyReader, Tokens, UsageCounter
from inference_gateway.replicas.request_stream import LONGEST_HEAD, PART, pass_on
from inference_gateway.slow_bodies import SlowBodyError

_HANDSHAKE_S = 10.0
_SHUTDOWN_S = 2.0
_BACKLOG = 1024
_PAUSE_S = 0.1
_REST_S = 2.0
"""How long a server may continue to write after the gateway has disconnected."""
_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: 92\r\nconnection: close\r\n\r\n"
    b'{"error":{"message":"the request did not arrive in time","type":"gateway_error","code":408}}'
)
"""HAProxy would count a broken connection as a failure of the replica, and take it out after three."""
FRESH_S = 1.0
"""Servers close idle connections, gunicorn after 2 s, uvicorn after 5 s: after this time a request gets a new one."""


class StrangerError(Exception):
    """Another user has the server's port."""


def server_context(identity: Path, authority: Path) -> ssl.SSLContext:
    """The TLS context of a replica: its own certificate, and the gateway's required. Raises `OSError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(identity)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class Relay:
    """The connections between the gateway and the server on `port`. `find` returns the sockets that listen there now.

    A request that arrives `fresh_s` after the last answer on its connection gets a new connection to the server.
    """

    def __init__(self, port: int, key: str, find: Callable[[int], Taken], fresh_s: float = FRESH_S) -> None:
        self.usage = UsageCounter()
        self.reading = ReadingTimer()
        self._port = port
        self._key = key
        self._fresh_s = fresh_s
        self._checks = _PortChecks(lambda: find(port))
        self._known: Taken | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._open: set[_Answers] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._finishing = asyncio.Event()

    def start(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Accept connections from now on."""
        listener.setblocking(False)  # noqa: FBT003  as asyncio wants it
        listener.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept(listener, context))

    def finish(self) -> None:
        """Take no more requests: close new and idle connections at once, and others with the last bytes of an answer.

        HAProxy sends what comes after to another replica. It cannot do that with what it has sent already.
        """
        self._finishing.set()

    async def end(self, within_s: float) -> None:
        """Accept no more connections, wait at most `within_s` for the open ones to end, and count what they have."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=within_s)
        for answers in self._open:
            answers.begin(None)

    async def count_open(self) -> None:
        """Add to `usage` what streams that have not ended have so far, while others go on."""
        for answers in tuple(self._open):
            answers.count_so_far()
            await asyncio.sleep(0)

    async def check(self) -> Taken:
        """The sockets that listen on the server's port, which are the server's; none before it listens.

        Raises:
            StrangerError: another user listens there.
            OSError: the kernel's tables cannot be read.

        """
        found = await self._checks.next()
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
            except OSError:  # the limit on open files is reached: wait until a connection ends
                await asyncio.sleep(_PAUSE_S)
                continue
            task = loop.create_task(self._serve(link, context))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, link: socket.socket, context: ssl.SSLContext) -> None:
        """Serve one connection.

        Without a server behind it the connection is closed before the TLS handshake: then the gateway knows that it has
        sent nothing, and uses another replica.
        """
        if self._finishing.is_set():
            link.close()
            return
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
        answers = _Answers(writer, self.usage, self.reading, self._finishing)
        self._open.add(answers)
        server = _ServerLink(self._connect, answers, self._fresh_s, (from_server, to_server))
        tasks = [
            asyncio.create_task(
                pass_on(reader, server.reach, self._key, answers.next_status, answers.begin, answers.sent)
            ),
            asyncio.create_task(server.copy()),
            asyncio.create_task(answers.until_finished()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        refused = any(isinstance(end, SlowBodyError) for end in ends) and answers.refuse(_TOO_SLOW)
        await answers.count_rest(server.reader, server.writer)
        answers.begin(None)
        self._open.discard(answers)
        broken = not refused and any(isinstance(end, Exception) for end in ends)
        for stream in (server.writer, writer):
            if broken:
                stream.transport.abort()  # so that the other end does not take it for a complete answer
            else:
                stream.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that ends at our own server.

        A socket that listened before the connection was made and still listens afterwards has listened all the time,
        and meanwhile no other user could bind its port. So the connection is its own, however quickly another process
        comes and goes.

        Raises:
            StrangerError: another user has the port.
            OSError: no process listens there, or the one that did has stopped.

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
    """The connection's streams after mutual TLS authentication. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LONGEST_HEAD)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, link, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S, ssl_shutdown_timeout=_SHUTDOWN_S
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _ServerLink:
    """The connection to the server behind one from the gateway, replaced if the server closes it between requests.

    Servers close idle connections. HAProxy would not see that, might send a request just then, and makes one TLS
    handshake for many requests of many clients.
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
        """The connection for the next request. Raises as `Relay._connect`."""
        if self.reader.at_eof() or self._answers.idle_for(self._fresh_s):
            await self._renew(self.reader)
        async with self._renewing:
            return self.writer

    async def copy(self) -> None:
        """Copy answers until the server closes during an answer or right after it. Raises as `Relay._connect`."""
        while True:
            reader = self.reader
            await self._answers.copy(reader)
            if reader is self.reader and not self._answers.idle_for(self._fresh_s):
                return
            await self._renew(reader)

    async def _renew(self, old: asyncio.StreamReader) -> None:
        """Replace this connection, unless it has been replaced already or a request has begun on it."""
        async with self._renewing:
            if self.reader is old and self._answers.idle_for(0):
                before = self.writer
                self.reader, self.writer = await self._connect()
                self._answers.idle_since_s = time.monotonic()
                before.close()


class _Answers:
    """Copies what the server sends to the gateway, as it arrives.

    Attributes:
        idle_since_s: when the last request was answered or the connection was made, on the monotonic clock.

    """

    def __init__(
        self, gateway: asyncio.StreamWriter, usage: UsageCounter, reading: ReadingTimer, finishing: asyncio.Event
    ) -> None:
        self.idle_since_s = time.monotonic()
        self._sent = self._answered = True
        self._begun = False
        self._gateway = gateway
        self._finishing = finishing
        self._usage = usage
        self._reading = reading
        self._status: asyncio.Future[int] | None = None
        self._client: str | None = None
        self._answer = AnswerReader()
        self._counted = Tokens()

    def idle_for(self, seconds: float) -> bool:
        """Whether all requests have been sent and answered completely for this long; False (unknown) after a check."""
        return self._sent and self._answered and time.monotonic() - self.idle_since_s >= seconds

    def begin(self, client: str | None) -> None:
        """Begin a new answer, for this client or none; the last one is complete or never will be."""
        self._end()
        self._client, self._sent, self._answered, self._begun = client, False, False, False

    def count_so_far(self) -> None:
        """Add what a stream has so far. What is only an estimate then, its end corrects."""
        if self._client is not None and self._answer.events:
            tokens = replace(self._answer.tokens(), estimated=0)
            self._usage.add(self._client, Tokens(), tokens - self._counted)
            self._counted = tokens

    def _end(self) -> None:
        if self._client is not None:
            self._usage.add(self._client, self._answer.tokens(), Tokens() - self._counted)
        self._client, self._answer, self._counted = None, AnswerReader(), Tokens()
        self._reading.end(self)

    def refuse(self, answer: bytes) -> bool:
        """Answer in the server's place, unless it has begun to answer: whether that was so."""
        if not self._begun:
            self._gateway.write(answer)
        return not self._begun

    def sent(self, body: BodyReader) -> None:
        """Record that the server has the whole request. Its first token is visible only if it asks for a stream."""
        self._sent, self.idle_since_s = True, time.monotonic()
        if self._client is None or not body.size:
            return  # answered already, or nothing to read
        if body.streams:
            self._reading.begin(self, body.size, time.monotonic())
        else:
            self._reading.begin_unseen(self)

    async def count_rest(self, source: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """After the gateway has disconnected: tell the server, and count what it had written by then."""
        if self._client is None:
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_REST_S):
                server.write_eof()  # servers take this for a disconnected client, as they do a closed connection
                while part := await source.read(PART):
                    self._answer.read(part)

    def next_status(self) -> asyncio.Future[int]:
        """The status of the next answer; HAProxy sends a request only after the answer to the one before."""
        self._status = asyncio.get_running_loop().create_future()
        return self._status

    async def copy(self, source: asyncio.StreamReader) -> None:
        """Copy until the source ends. Raises `OSError`."""
        while part := await source.read(PART):
            self._begun = True
            if self._status is not None:
                digits = part[9:12]  # of `HTTP/1.1 101 Switching Protocols`
                self._status.set_result(int(digits) if digits.isdigit() else 0)
                self._status = None
            if self._client is not None:
                self._answer.read(part)
                if self._answer.events:
                    self._reading.first(self, time.monotonic())
                if self._answer.ended:
                    self._end()  # the connection may now be idle for as long as the gateway keeps it
                    self._answered, self.idle_since_s = True, time.monotonic()
                    if self._finishing.is_set():
                        self._close_with(part)
                        return
            self._gateway.write(part)
            await self._gateway.drain()

    async def until_finished(self) -> None:
        """Wait until no more requests are taken and none is being answered; `copy` ends with the last answer."""
        await self._finishing.wait()
        if not self.idle_for(0):
            await asyncio.Event().wait()

    def _close_with(self, part: bytes) -> None:
        """Write this and close, in one packet: HAProxy would send a waiting request right after an answer."""
        link = self._gateway.get_extra_info("socket")
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        self._gateway.write(part)
        self._gateway.close()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)


class _PortChecks:
    """Reads the kernel's socket tables, which takes milliseconds on a busy node: once at a time, in a thread."""

    def __init__(self, find: Callable[[], Taken]) -> None:
        self._find = find
        self._running: asyncio.Task[Taken] | None = None
        self._waiting: asyncio.Task[Taken] | None = None

    async def next(self) -> Taken:
        """The result of a read that begins after this call. Calls during a running read share the next one."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._after(self._running))
        return await asyncio.shield(self._waiting)

    async def _after(self, running: asyncio.Task[Taken] | None) -> Taken:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._waiting = self._waiting, None
        return await asyncio.to_thread(self._find)
