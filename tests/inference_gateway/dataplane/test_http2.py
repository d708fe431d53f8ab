"""HTTP/2: what clients may do on one connection, whatever they make of what the gateway tells them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.http2 import Http2
from tests.inference_gateway.rig import ALICE, CLIENT_KEY, Replica, Rig, gateway, wait_until

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
