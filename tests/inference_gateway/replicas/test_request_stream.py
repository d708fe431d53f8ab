"""Requests passed on with the key of the server, one after another, each with the body it has."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference_gateway.replicas.request_stream import MalformedError, head_with_key, pass_on

POST = b"POST /v1/x HTTP/1.1\r\nhost: h\r\nauthorization: Bearer client\r\nAuthorization: Basic x\r\n"
PLAIN = b"POST /v1/x HTTP/1.1\r\nhost: h\r\n"
KEYED = b"authorization: Bearer KEY\r\n\r\n"


class Sink:
    """The server's end of a connection."""

    def __init__(self) -> None:
        self.received = b""

    def write(self, data: bytes) -> None:
        self.received += data

    async def drain(self) -> None:
        pass

    async def reach(self) -> "Sink":
        return self


def passed_on(data: bytes, parts: int = 1, status: int = 200) -> bytes:
    """What the server receives of these bytes, which come in parts of this many bytes."""

    async def run() -> bytes:
        sink, reader = Sink(), asyncio.StreamReader(limit=1 << 16)

        def next_status() -> asyncio.Future[int]:
            answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            answered.set_result(status)
            return answered

        forward: Callable[..., Awaitable[None]] = pass_on
        task = asyncio.ensure_future(
            forward(reader, sink.reach, "KEY", next_status, lambda _client: None, lambda _body: None)
        )
        for start in range(0, len(data), parts):
            reader.feed_data(data[start : start + parts])
            await asyncio.sleep(0)
        reader.feed_eof()
        await task
        return sink.received

    return asyncio.run(run())


@pytest.mark.parametrize("parts", [1, 7, 100_000])
def test_each_request_has_its_key_and_its_body(parts: int) -> None:
    body = b"authorization: Bearer of-the-body\r\n\r\n" * 3
    sized = b"Content-Length: %d\r\n" % len(body)
    chunks = b"5;x=y\r\nab\r\nc\r\nA\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\n"
    data = POST + sized + b"\r\n" + body
    data += POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    data += POST + b"\r\n"
    expected = PLAIN + sized + KEYED + body
    expected += PLAIN + b"Transfer-Encoding: chunked\r\n" + KEYED + chunks
    expected += PLAIN + KEYED
    assert passed_on(data, parts) == expected


def test_a_head_comes_before_the_body_that_the_server_asks_for() -> None:
    sink = Sink()
    forward: Callable[..., Awaitable[None]] = pass_on

    async def run() -> bytes:
        reader = asyncio.StreamReader()
        task = asyncio.ensure_future(forward(reader, sink.reach, "KEY", None, lambda _client: None, lambda _body: None))
        reader.feed_data(POST + b"content-length: 1\r\nexpect: 100-continue\r\n\r\n")
        while not sink.received:
            await asyncio.sleep(0)
        early = sink.received
        reader.feed_data(b"x")
        reader.feed_eof()
        await task
        return early

    early = asyncio.run(run())
    assert early == PLAIN + b"content-length: 1\r\nexpect: 100-continue\r\n" + KEYED
    assert sink.received == early + b"x"


@pytest.mark.parametrize(
    "kind", [b"h2c", b"websocket, h2c", b"TLS/1.0", b"websocket\r\nUpgrade: h2c", b"h2c\r\nUpgrade: websocket"]
)
def test_nothing_is_upgraded_but_to_a_websocket(kind: bytes) -> None:
    data = PLAIN + b"connection: upgrade\r\nupgrade: " + kind + b"\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    assert passed_on(data) == PLAIN + b"connection: upgrade\r\n" + KEYED


def test_what_follows_a_websocket_is_not_read() -> None:
    upgrade = PLAIN + b"upgrade: websocket\r\n"
    assert passed_on(upgrade + b"\r\n" + POST + b"\r\n", status=101) == upgrade + KEYED + POST + b"\r\n"
    assert passed_on(upgrade + b"\r\n" + POST + b"\r\n", status=404) == upgrade + KEYED + PLAIN + KEYED


@pytest.mark.parametrize(
    "fields",
    [
        b"content-length: 1\r\ncontent-length: 2\r\n",
        b"content-length: +1\r\n",
        b"content-length: 1\r\ntransfer-encoding: chunked\r\n",
    ],
)
def test_a_length_that_is_not_clear_is_refused(fields: bytes) -> None:
    with pytest.raises(MalformedError):
        head_with_key(POST + fields + b"\r\n", "KEY")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (POST, ConnectionResetError),
        (POST + b"content-length: 5\r\n\r\nabc", ConnectionResetError),
        (POST + b"transfer-encoding: chunked\r\n\r\n5\r\nab", ConnectionResetError),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", MalformedError),
        (POST + b"x: " + b"y" * 70_000 + b"\r\n\r\n", MalformedError),
    ],
)
def test_a_request_that_breaks_off(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        passed_on(data, 1000)


def test_no_answer_is_compressed() -> None:
    """Its tokens could not be counted."""
    assert passed_on(PLAIN + b"Accept-Encoding: gzip, br\r\naccept: */*\r\n\r\n") == PLAIN + b"accept: */*\r\n" + KEYED


def test_marks_of_the_gateway_go_no_further() -> None:
    data = PLAIN + b"X-Gateway-Key: alice\r\nx-gateway-service: big\r\nx-other: 1\r\n\r\n"
    assert passed_on(data) == PLAIN + b"x-other: 1\r\n" + KEYED


@pytest.mark.parametrize(
    ("mark", "client"),
    [(b"", None), (b"x-gateway-service: big/alice\r\n", "alice"), (b"X-Gateway-Service: big\r\n", "")],
)
def test_the_gateway_names_the_client(mark: bytes, client: str | None) -> None:
    assert head_with_key(PLAIN + mark + b"\r\n", "KEY").client == client
