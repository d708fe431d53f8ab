"""HTTP/2: what clients may do on one connection, whatever they make of what the gateway tells them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ApiKey, ServiceSettings, digest_of
from tests.inference_gateway.http2 import Http2
from tests.inference_gateway.rig import ALICE, CLIENT_KEY, Replica, Rig, early_in_a_minute, gateway, wait_until

KEYED = {"authorization": f"Bearer {CLIENT_KEY}"}


@pytest.fixture
def rig(directory: Path, servers: list[Replica]) -> Iterator[Rig]:
    with gateway(directory, ServiceSettings("chat")) as running:
        running.add("chat", servers[0].endpoint)
        yield running


def completed(link: Http2) -> int:
    body = json.dumps({"model": "chat", "max_tokens": 1}).encode()
    return link.status(link.begin("POST", "/v1/chat/completions", KEYED, body))


def test_a_connection_that_outlives_a_reload_is_soon_refused(rig: Rig) -> None:
    """With its keys, quotas and services of before."""
    with Http2(rig.port) as link:
        assert completed(link) == 200
        rig.plane.apply(replace(rig.plane.settings, keys=(replace(ALICE, digest="A" * 64),)))
        assert completed(link) == 200, "one that has not heard of it yet"
        wait_until(lambda: completed(link) == 503)
    with Http2(rig.port) as link:
        assert completed(link) == 401


def stranger(port: int, source: str = "127.0.0.1") -> int:
    with Http2(port, source=source) as link:
        return link.status(link.begin("POST", "/v1/chat/completions"))


def test_answers_that_strangers_do_not_take_are_bounded(rig: Rig) -> None:
    """Each holds a buffer. With a hundred of them a source gets no more, but for its keys; other sources do."""
    with Http2(rig.port, window=0) as full:
        streams = [full.begin("GET", "/healthz") for _ in range(50)]
        streams += [full.begin("POST", "/v1/chat/completions") for _ in range(50)]
        assert [full.status(stream) for stream in streams] == [200] * 50 + [401] * 50
        assert stranger(rig.port) == 0
        assert rig.complete("chat").status == 200
        assert stranger(rig.port, "127.0.0.2") == 401
    wait_until(lambda: stranger(rig.port) == 401)


def test_strangers_whose_body_does_not_come_are_bounded_too(rig: Rig) -> None:
    with Http2(rig.port) as full:
        for _ in range(100):
            full.begin("POST", "/v1/chat/completions", body=None)
        full.settle()
        assert stranger(rig.port) == 0
        assert rig.complete("chat").status == 200
    wait_until(lambda: stranger(rig.port) == 401)


SPENT = ApiKey("bob", digest_of("bobs-key"), requests_per_minute=1)


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/v1/chat/completions", "nobodys-key", 401),
        ("/v1/chat/completions", "bobs-key", 429),
        ("/v1/secrets", CLIENT_KEY, 404),
    ],
)
def test_a_refusal_breaks_no_stream_off(directory: Path, path: str, key: str, status: int) -> None:
    """HAProxy resets a stream whose body it has not taken, and curl then tells neither status nor Retry-After."""
    early_in_a_minute()
    chat = ServiceSettings("chat", cold_start_limit=0)
    with gateway(directory / "refuses", chat, keys=(ALICE, SPENT)) as rig, Http2(rig.port) as link:
        for _ in range(2):
            stream = link.begin("POST", path, {"authorization": f"Bearer {key}"}, body=None)
            link.settle()
            link.send(stream, b'{"model": "chat"}')
            told = link.status(stream)
            link.settle()
        assert (told, link.resets) == (status, set())
