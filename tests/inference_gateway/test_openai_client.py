"""OpenAI's own client against the gateway: chat, streams, embeddings, models, errors as its exceptions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_gateway.dataplane.settings import ApiKey, ServiceSettings, digest_of
from tests.inference_gateway.rig import ALICE, CLIENT_KEY, Replica, Rig, gateway

openai = pytest.importorskip("openai")

BOB = ApiKey("bob", digest_of("bobs-key"), services=("vectors",), tokens_per_minute=10)
MESSAGES = [{"role": "user", "content": "one two three"}]


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    chat, vectors = ServiceSettings("chat", models=("org/chat-7b",)), ServiceSettings("vectors")
    with gateway(directory, chat, vectors, keys=(ALICE, BOB)) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    running.add("chat", servers[0].endpoint)
    running.add("vectors", servers[1].endpoint)
    yield running
    running.clear()


def client(rig: Rig, key: str = CLIENT_KEY) -> Any:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{rig.port}/v1", api_key=key, max_retries=0)


def test_chat(rig: Rig) -> None:
    with client(rig) as link:
        answer = link.chat.completions.create(model="org/chat-7b", messages=MESSAGES, max_tokens=3)
    assert answer.choices[0].message.content.split() == ["the", "quick", "brown"]
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (3, answer.usage.prompt_tokens + 3)


def test_a_stream_with_its_usage(rig: Rig) -> None:
    with client(rig) as link:
        stream = link.chat.completions.create(
            model="chat", messages=MESSAGES, max_tokens=4, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content for chunk in chunks).split() == ["the", "quick", "brown", "fox"]
    assert (last.choices, last.usage.completion_tokens) == ([], 4)


def test_a_stream_that_is_left_ends_at_the_replica(rig: Rig, servers: list[Replica]) -> None:
    servers[0].behave(token_ms=50.0)
    before = servers[0].state["abandoned"]
    with (
        client(rig) as link,
        link.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=10_000, stream=True) as stream,
    ):
        assert next(iter(stream)).choices[0].delta.content == "the "
    deadline_s = time.monotonic() + 30
    while servers[0].state["abandoned"] == before:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_embeddings(rig: Rig) -> None:
    """The client asks for base64 unless told otherwise, and takes either."""
    with client(rig, "bobs-key") as link:
        answer = link.embeddings.create(model="vectors", input=["one", "two three"])
        again = link.embeddings.create(model="vectors", input=["one", "two three"], encoding_format="float")
    assert [len(entry.embedding) for entry in answer.data] == [8, 8]
    assert answer.data[0].embedding != answer.data[1].embedding
    assert [entry.embedding for entry in again.data] == [pytest.approx(entry.embedding) for entry in answer.data]
    assert answer.usage.prompt_tokens == 3


def test_models_are_those_that_the_key_may_use(rig: Rig) -> None:
    with client(rig) as alice, client(rig, "bobs-key") as bob:
        assert {model.id for model in alice.models.list()} == {"chat", "org/chat-7b", "vectors"}
        assert {model.id for model in bob.models.list()} == {"vectors"}


@pytest.mark.parametrize("name", ["chat", "org/chat-7b"])
def test_one_model_is_told_to_keys_that_may_use_it(rig: Rig, name: str) -> None:
    """The client writes a slash in a name as %2F."""
    with client(rig) as alice, client(rig, "bobs-key") as bob:
        found = alice.models.retrieve(name)
        assert (found.id, found.object, found.owned_by) == (name, "model", "chat")
        with pytest.raises(openai.NotFoundError, match="no such model"):
            bob.models.retrieve(name)
        with pytest.raises(openai.NotFoundError, match="no such model"):
            alice.models.retrieve("unknown")


def test_errors_are_the_clients_own_exceptions(rig: Rig) -> None:
    with client(rig, "nobody") as link, pytest.raises(openai.AuthenticationError, match="a known API key is needed"):
        link.models.list()
    with client(rig) as link, pytest.raises(openai.NotFoundError, match="no such model"):
        link.chat.completions.create(model="unknown", messages=MESSAGES)
    with client(rig, "bobs-key") as link:
        with pytest.raises(openai.PermissionDeniedError):
            link.chat.completions.create(model="chat", messages=MESSAGES)
        rig.plane.hold_back({"bob": int(time.time()) + 60})
        with pytest.raises(openai.RateLimitError, match="used up its tokens"):
            link.embeddings.create(model="vectors", input="one")
    rig.plane.hold_back({})
