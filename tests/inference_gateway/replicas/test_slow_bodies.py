"""Bodies that trickle: a replica's place is not theirs for long."""

import asyncio
import json
from contextlib import closing, suppress
from pathlib import Path

import pytest

from inference_gateway import slow_bodies
from tests.inference_gateway.replicas.test_relay import relayed, serving


@pytest.mark.parametrize("begins", [False, True], ids=["silent", "server that has begun to answer"])
@pytest.mark.parametrize(
    ("head", "part"),
    [(b"content-length: 999\r\n\r\n", b"x"), (b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n")],
    ids=["of a length", "in chunks"],
)
def test_a_body_that_trickles_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begins: bool, head: bytes, part: bytes
) -> None:
    """Not as a broken connection, which HAProxy would count against the replica, unless there is no other way."""
    monkeypatch.setattr(slow_bodies, "GRACE_S", 0.1)
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            if begins:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await reader.read()
        left.set()

    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST / HTTP/1.1\r\nx-gateway-service: chat/alice\r\n" + head + part)
        while True:
            writer.write(part)
            await asyncio.sleep(0.02)

    async def run() -> bytes:
        async with serving(serve) as port, relayed(tmp_path, port) as (reader, writer):
            sending = asyncio.create_task(trickle(writer))
            answer = bytearray()
            with suppress(ConnectionError):
                while more := await reader.read(1000):
                    answer += more
            sending.cancel()
            await left.wait()
            return bytes(answer)

    answer = asyncio.run(run())
    if begins:
        assert answer == b"HTTP/1.1 200 OK\r\n\r\n", "cut off"
    else:
        told, _, body = answer.partition(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b"content-length: %d\r\n" % len(body) in told
        assert json.loads(body)["error"]["code"] == 408
