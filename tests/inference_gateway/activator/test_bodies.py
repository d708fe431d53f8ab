"""Whole bodies in memory: bounded each and together, and exact about `model`."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import StreamReader
from hypothesis import given
from hypothesis import strategies as st

from inference_gateway import slow_bodies
from inference_gateway.activator.relay import Bodies, Body, NoRoomError, TooLargeError
from inference_gateway.slow_bodies import SlowBodyError

BODY = b'{"messages": [], "model": "big"}'


def source(*parts: bytes) -> StreamReader:
    stream = StreamReader(Mock(), limit=1 << 20)
    for part in parts:
        stream.feed_data(part)
    stream.feed_eof()
    return stream


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(what)


def test_a_body_is_received_named_and_sent_once() -> None:
    async def check() -> None:
        bodies = Bodies(1000)
        with bodies.body("k") as body:
            await body.receive(source(BODY[:10], BODY[10:]), 1000)
            assert bodies.held_bytes == len(BODY)
            assert body.model() == "big"
            assert b"".join([part async for part in body.parts()]) == BODY
            assert bodies.held_bytes == 0, "what is sent needs no memory while the answer comes"
        assert bodies.held_bytes == 0

    run(check())


def test_a_long_body_is_sent_in_order() -> None:
    async def check() -> None:
        long = bytes(range(256)) * 5000
        with Bodies(1 << 30).body("k") as body:
            await body.receive(source(long), 1 << 30)
            parts = [part async for part in body.parts()]
            assert len(parts) > 1
            assert b"".join(parts) == long

    run(check())


def test_the_bounds_of_one_and_of_all() -> None:
    async def check() -> None:
        bodies = Bodies(2 * len(BODY))
        with bodies.body("a") as one, bodies.body("b") as other, bodies.body("c") as third:
            await one.receive(source(BODY), len(BODY))
            with pytest.raises(TooLargeError):
                await other.receive(source(BODY), len(BODY) - 1)
            await other.receive(source(BODY), len(BODY))
            with pytest.raises(NoRoomError):
                await third.receive(source(b"x"), len(BODY))
            one.forget()
            await third.receive(source(b"x"), len(BODY))
        assert bodies.held_bytes == 0

    run(check())


def test_one_key_leaves_room_for_others() -> None:
    async def check() -> None:
        bodies = Bodies(100)
        with bodies.body("a") as one, bodies.body("a") as more, bodies.body("b") as other:
            await one.receive(source(b"x" * 40), 40)
            with pytest.raises(NoRoomError):
                await more.receive(source(b"x" * 11), 40)
            await other.receive(source(b"x" * 30), 40)
            one.forget()
            await more.receive(source(b"x" * 35), 40)

    run(check())


def test_a_body_that_trickles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_bodies, "GRACE_S", 0.1)

    async def check() -> None:
        stream = StreamReader(Mock(), limit=1 << 20)

        async def trickle() -> None:
            while True:
                stream.feed_data(b"x")
                await asyncio.sleep(0.01)

        feeding = asyncio.create_task(trickle())
        with pytest.raises(SlowBodyError), Bodies(1 << 30).body("k") as body:
            await body.receive(stream, 1 << 30)
        feeding.cancel()

    run(check())


def test_a_failure_gives_the_memory_back() -> None:
    async def check() -> None:
        bodies = Bodies(1000)
        stream = StreamReader(Mock(), limit=1 << 20)
        stream.feed_data(BODY)
        stream.set_exception(ConnectionResetError())
        with pytest.raises(ConnectionResetError), bodies.body("k") as body:
            await body.receive(stream, 1000)
        assert bodies.held_bytes == 0

    run(check())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just("model"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_the_model_is_the_one_that_python_reads(value: object) -> None:
    expected = value.get("model") if isinstance(value, dict) else None
    found = Body(Bodies(0), bytearray(json.dumps(value).encode())).model()
    assert found == (expected if isinstance(expected, str) else None)


@pytest.mark.parametrize("text", [b"", b"{", b'{"model": "a"', b'{"model": "a"} x', b'{"model": "\xff"}'])
def test_what_is_no_json_has_no_model(text: bytes) -> None:
    assert Body(Bodies(0), bytearray(text)).model() is None


def test_json_that_is_nested_too_deep_for_anybody_has_no_model() -> None:
    nested = b'{"x": ' + b"[" * 10**6 + b"]" * 10**6 + b', "model": "a"}'
    assert Body(Bodies(0), bytearray(nested)).model() is None
