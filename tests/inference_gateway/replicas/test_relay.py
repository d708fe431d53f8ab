"""The way from the gateway to a server: whole requests and answers, and nothing for who is not the server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from inference_gateway.replicas.identity import Authority, gateway_context
from inference_gateway.replicas.ports import Listener, Taken, taken
from inference_gateway.replicas.relay import Relay, server_context
from inference_gateway.replicas.reports import Tokens
from tests.inference_gateway.rig import wait_until
from tests.inference_gateway.strangers import stranger

Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def relay_to(directory: Path, port: int, look: Callable[[int], Taken] = taken) -> AsyncIterator[int]:
    """The port of a relay to the server on another port."""
    async with relaying(directory, Relay(port, "KEY", look)) as listener:
        yield listener


@asynccontextmanager
async def relaying(directory: Path, relay: Relay) -> AsyncIterator[int]:
    """The port of a relay, which has ended afterwards."""
    (directory / "r.pem").write_text(Authority.of(directory / "identity").replica("r"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay.start(listener, server_context(directory / "r.pem", directory / "identity" / "authority.pem"))
        try:
            yield listener.getsockname()[1]
        finally:
            await relay.end(10)


@asynccontextmanager
async def relayed(directory: Path, port: int, look: Callable[[int], Taken] = taken) -> AsyncIterator[Talk]:
    """A connection of the gateway through a relay to the server on a port."""
    async with relay_to(directory, port, look) as listener:
        context = gateway_context(directory / "identity")
        reader, writer = await asyncio.open_connection("127.0.0.1", listener, ssl=context, server_hostname="r")
        try:
            yield reader, writer
        finally:
            writer.close()


def refused(directory: Path, port: int, look: Callable[[int], Taken] = taken) -> bool:
    """Whether a relay closes the gateway's connection before it could have sent anything."""

    async def run() -> bool:
        try:
            async with relayed(directory, port, look):
                return False
        except ConnectionError:
            return True

    return asyncio.run(run())


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """The port of a server on the loopback address."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Two requests; the second ends the connection."""
    with closing(writer), suppress(asyncio.IncompleteReadError):  # whoever asks may leave before the second
        for ending in (b"keep-alive", b"close"):
            head = await reader.readuntil(b"\r\n\r\n")
            body = head + await reader.readexactly(3)
            told = b"HTTP/1.1 200 OK\r\nconnection: %s\r\ncontent-length: %d\r\n\r\n" % (ending, len(body))
            writer.write(told + body)


async def one(talk: Talk, body: bytes, more: bytes = b"") -> bytes:
    reader, writer = talk
    writer.write(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n%s\r\n" % more + body)
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.rpartition(b"content-length: ")[2]))


def test_requests_and_answers_on_one_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(echo) as port, relayed(tmp_path, port) as talk:
            for body in (b"abc", b"def"):
                assert await one(talk, body) == (
                    b"POST / HTTP/1.1\r\ncontent-length: 3\r\nauthorization: Bearer KEY\r\n\r\n" + body
                )
            assert await talk[0].read() == b"", "the server's end is the gateway's"

    asyncio.run(run())


@pytest.mark.parametrize("closes", [False, True], ids=["after a pause", "when the server closes"])
def test_the_gateway_keeps_its_connection_while_those_to_the_server_change(tmp_path: Path, *, closes: bool) -> None:
    """As uvicorn closes what is idle; the gateway's next request may be on its way then."""
    answered: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = len(answered)
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(3)
                answered.append(mine)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % mine)
                if closes:
                    break
        writer.close()

    async def run() -> list[bytes]:
        async with serving(serve) as port, relaying(tmp_path, Relay(port, "KEY", taken, fresh_s=0.0)) as listener:
            context = gateway_context(tmp_path / "identity")
            talk = await asyncio.open_connection("127.0.0.1", listener, ssl=context, server_hostname="r")
            found = [await one(talk, b"abc", b"x-gateway-service: chat/alice\r\n") for _ in range(3)]
            talk[1].close()
            return found

    assert asyncio.run(run()) == [b"0", b"1", b"2"]


def test_a_relay_that_finishes_answers_what_has_begun_and_takes_nothing_more(tmp_path: Path) -> None:
    """As at `scancel`: HAProxy sends a waiting request as soon as an answer is whole, unless the end comes with it."""
    may_answer = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(3)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")
                await may_answer.wait()
                writer.write(b"k")
        writer.close()

    async def run() -> None:
        async with serving(serve) as port:
            relay = Relay(port, "KEY", taken)
            async with relaying(tmp_path, relay) as listener:
                context = gateway_context(tmp_path / "identity")
                idle, busy = [
                    await asyncio.open_connection("127.0.0.1", listener, ssl=context, server_hostname="r")
                    for _ in range(2)
                ]
                busy[1].write(b"POST / HTTP/1.1\r\nx-gateway-service: chat/alice\r\ncontent-length: 3\r\n\r\nabc")
                await busy[0].readuntil(b"\r\n\r\n")
                relay.finish()
                assert await idle[0].read() == b""
                with pytest.raises(ConnectionError):
                    await asyncio.open_connection("127.0.0.1", listener, ssl=context, server_hostname="r")
                may_answer.set()
                assert await busy[0].readuntil(b"k") == b"ok"
                assert busy[0].at_eof(), "the end comes with the last byte, before anything can be sent"

    asyncio.run(run())


def test_what_a_server_writes_before_it_ends_arrives(tmp_path: Path) -> None:
    size = 5_000_000

    async def much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"x" * size)
        writer.close()

    async def run() -> int:
        async with serving(much) as port, relayed(tmp_path, port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            return len(await reader.read())

    assert asyncio.run(run()) == size


def test_a_gateway_that_goes_is_gone_for_the_server(tmp_path: Path) -> None:
    async def run() -> bytes:
        gone: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        asked = asyncio.Event()

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            gone.set_result(await reader.read())
            writer.close()

        async with serving(wait) as port:
            async with relayed(tmp_path, port) as (_reader, writer):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await asked.wait()
            return await asyncio.wait_for(gone, 60)

    assert asyncio.run(run()) == b""


async def events_read(directory: Path, listener: int, count: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The gateway's connection with a request of alice's, once so many events of its answer have come."""
    context = gateway_context(directory / "identity")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener, ssl=context, server_hostname="r")
    writer.write(b"GET / HTTP/1.1\r\nx-gateway-service: chat/alice\r\n\r\n")
    for _ in range(count):
        await reader.readuntil(b"}\n\n")
    return reader, writer


def test_what_a_server_has_written_when_the_gateway_goes_is_counted(tmp_path: Path) -> None:
    """Three tokens arrive; three more are on their way when the server learns that nobody listens."""

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"a":1}\n\n' * 3)
        await reader.read()
        writer.write(b'data: {"a":1}\n\n' * 3)
        writer.close()

    async def run() -> dict[str, Tokens]:
        async with serving(stream) as port:
            relay = Relay(port, "KEY", taken)
            async with relaying(tmp_path, relay) as listener:
                _reader, writer = await events_read(tmp_path, listener, 3)
                writer.transport.abort()
            return relay.usage.by_key

    assert asyncio.run(run()) == {"alice": Tokens(1, 0, 6, 1)}


def test_a_stream_counts_while_it_is_open_and_once(tmp_path: Path) -> None:
    """Or a key over its quota would go on until its longest stream ends. Three events of four were tokens.

    Gateways of 0.1.0 read `by_key` alone, and would lose what is added to a request that they have counted.
    """
    goes_on = asyncio.Event()
    usage = b'data: {"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"a":1}\n\n' * 4)
        await goes_on.wait()
        writer.write(usage)
        writer.close()

    async def run() -> list[dict[str, Tokens]]:
        async with serving(stream) as port:
            relay, counted = Relay(port, "KEY", taken), []
            async with relaying(tmp_path, relay) as listener:
                reader, writer = await events_read(tmp_path, listener, 4)
                for _ in range(2):
                    await relay.count_open()
                    counted.append(dict(relay.usage.by_key))
                relay.usage.write(tmp_path)
                assert json.loads((tmp_path / "usage").read_text())["by_key"] == {"alice": asdict(Tokens())}
                goes_on.set()
                await reader.read()
                writer.close()
            await relay.count_open()
            relay.usage.write(tmp_path)
            assert json.loads((tmp_path / "usage").read_text())["by_key"] == {"alice": asdict(Tokens(1, 9, 3))}
            return [*counted, relay.usage.by_key]

    assert asyncio.run(run()) == [{"alice": Tokens(1, 0, 4)}] * 2 + [{"alice": Tokens(1, 9, 3)}]


def test_what_a_stream_has_when_its_replica_ends_is_an_estimate(tmp_path: Path) -> None:
    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"a":1}\n\n' * 4)
        await reader.read()
        writer.close()

    async def run() -> list[dict[str, Tokens]]:
        async with serving(stream) as port:
            relay, counted = Relay(port, "KEY", taken), []
            async with relaying(tmp_path, relay) as listener:
                _reader, writer = await events_read(tmp_path, listener, 4)
                await relay.count_open()
                await relay.end(within_s=0)
                counted.append(relay.usage.by_key)
                writer.close()
            return [*counted, relay.usage.by_key]

    assert asyncio.run(run()) == [{"alice": Tokens(1, 0, 4, 1)}] * 2, "and its connection's end adds nothing"


@pytest.mark.parametrize(
    "answer",
    [
        b'content-length: 14\r\n\r\ndata: {"a":1}\n',
        b'Transfer-Encoding: chunked\r\n\r\nf\r\ndata: {"a":1}\n\n\r\n0\r\n\r\n',
    ],
    ids=["of a length", "in chunks"],
)
def test_an_answer_counts_when_it_is_whole_although_its_connection_stays(tmp_path: Path, answer: bytes) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in b"HTTP/1.1 200 OK\r\n" + answer:
            writer.write(bytes([byte]))
            await writer.drain()
        await reader.read()
        writer.close()

    async def run() -> dict[str, Tokens]:
        async with serving(answering) as port:
            relay = Relay(port, "KEY", taken)
            async with relaying(tmp_path, relay) as listener:
                context = gateway_context(tmp_path / "identity")
                reader, writer = await asyncio.open_connection("127.0.0.1", listener, ssl=context, server_hostname="r")
                writer.write(b"GET / HTTP/1.1\r\nx-gateway-service: chat/alice\r\n\r\n")
                await reader.readexactly(len(b"HTTP/1.1 200 OK\r\n" + answer))
                counted = dict(relay.usage.by_key)
                writer.close()
            assert relay.usage.by_key == counted, "and once only"
            return counted

    assert asyncio.run(run()) == {"alice": Tokens(1, 0, 1, 1)}


def test_what_a_server_reads_is_measured_where_it_streams(tmp_path: Path) -> None:
    """The first token of a plain answer comes with its last, so nobody knows how long it was read."""
    bodies = [b'{"m": "' + b"x" * 90_000 + b'", "stream": true}', b'{"m": "yyy"}', b'{"stream":true}']

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in bodies:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(body))
            await asyncio.sleep(0.01)
            event = b'data: {"a":1}\n' if b"stream" in body else b'{"a":       1}\n'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(event) + event)
        writer.close()

    async def run() -> list[float]:
        async with serving(answering) as port:
            relay = Relay(port, "KEY", taken)
            async with relaying(tmp_path, relay) as listener:
                context = gateway_context(tmp_path / "identity")
                reader, writer = await asyncio.open_connection("127.0.0.1", listener, ssl=context, server_hostname="r")
                for body in bodies:
                    head = b"POST / HTTP/1.1\r\nx-gateway-service: chat/a\r\ncontent-length: %d\r\n\r\n" % len(body)
                    writer.write(head + body)
                    await reader.readuntil(b"}\n")
                writer.close()
            return [one.amount for one in relay.reading.stretches]

    assert asyncio.run(run()) == [len(bodies[0]), len(bodies[2])]


def test_nobody_there_yet(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert refused(tmp_path, held.getsockname()[1])


def test_a_stranger_is_not_even_connected_to(tmp_path: Path) -> None:
    with stranger(0) as seen:
        assert refused(tmp_path, seen.port)
    assert (seen.connections, seen.received) == (0, b"")


@pytest.mark.parametrize("after", [(), (8,), (7, 8)])
def test_a_stranger_who_comes_and_goes_gets_a_connection_and_nothing_on_it(
    tmp_path: Path, after: tuple[int, ...]
) -> None:
    """The looks before and after find sockets of ours; that there was another one in between shows by their inodes."""
    looks = iter([(7,), after])

    def look(_port: int) -> Taken:
        return Taken("127.0.0.1", frozenset(Listener(0, inode) for inode in next(looks, ())))

    with stranger(0) as seen:
        assert refused(tmp_path, seen.port, look)
        wait_until(lambda: seen.connections)
    assert (seen.connections, seen.received) == (1, b"")


def test_nobody_but_the_gateway_is_served(tmp_path: Path) -> None:
    async def run() -> bytes:
        async with serving(echo) as port, relay_to(tmp_path, port) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener)
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc")
            try:
                return await reader.read()
            finally:
                writer.close()

    assert b"HTTP" not in asyncio.run(run())
