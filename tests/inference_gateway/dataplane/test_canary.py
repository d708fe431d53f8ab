"""A share of a service's requests goes to another service, while that has a replica; and the chat page."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ApiKey, BatchSettings, Canary, ServiceSettings, digest_of
from tests.inference_gateway.rig import ALICE, Replica, Rig, gateway

BOB = ApiKey("bob", digest_of("bobs-key"), services=("chat",))


@pytest.fixture(scope="module")
def rig(directory: Path) -> Iterator[Rig]:
    chat = ServiceSettings("chat", canary=Canary("next", 0.25), adapters=("lora",), models=("org/chat", "lora"))
    batches = BatchSettings(directory / "batches", file_bytes=1 << 20, files_per_key=4, requests_per_batch=10)
    services = chat, ServiceSettings("next")
    with gateway(directory, *services, keys=(ALICE, BOB), page="chat", batches=batches) as rig:
        yield rig


def answering(rig: Rig, count: int, **headers: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(count):
        answer = rig.complete("chat", **headers)
        assert answer.status == 200
        found[answer.headers["x-replica"]] += 1
    return found


def test_the_share_goes_to_the_canary_while_it_has_a_replica(rig: Rig, servers: list[Replica]) -> None:
    rig.add("chat", servers[0].endpoint)
    assert answering(rig, 40) == {"r1": 40}
    rig.add("next", servers[1].endpoint)
    found = answering(rig, 200)
    assert 20 <= found["r2"] <= 90  # five standard deviations about 50
    assert found["r1"] + found["r2"] == 200
    assert answering(rig, 100, authorization="Bearer bobs-key")["r2"] > 0  # its key may use what it is asked for
    assert len(answering(rig, 30, x_session_id="one")) == 1
    assert answering(rig, 1, x_service="next") == {"r2": 1}
    rig.plane.drain("next", "r2")
    assert answering(rig, 40) == {"r1": 40}
    rig.clear()


def test_batches_stay_with_the_service_that_takes_them(rig: Rig, servers: list[Replica]) -> None:
    """Room is kept for them there alone, and it is there that they do not count as load."""
    rig.add("chat", servers[0].endpoint)
    rig.add("next", servers[1].endpoint)
    body = {"model": "chat", "max_tokens": 1}
    answers = [rig.ask_for_batch("POST", "/v1/chat/completions", body, "chat", "alice") for _ in range(60)]
    assert Counter((answer.status, answer.headers["x-replica"]) for answer in answers) == {(200, "r1"): 60}
    rig.clear()


def test_adapters_are_listed_as_children_of_the_model(rig: Rig) -> None:
    listed = {model["id"]: model.get("parent") for model in rig.ask("GET", "/v1/models").json["data"]}
    assert listed == {"chat": None, "org/chat": None, "lora": "chat", "next": None}


def test_the_page_needs_no_key_and_asks_no_other_host(rig: Rig) -> None:
    page = rig.ask("GET", "/chat", authorization="Bearer nobody")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"localStorage" not in page.body
    assert b"://" not in page.body
    assert rig.ask("POST", "/chat", b"", authorization="Bearer nobody").status == 401


def test_there_is_no_page_by_default(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> None:
    place = directory / "plain"
    place.mkdir()
    with gateway(place, ServiceSettings("chat")) as rig:
        assert rig.ask("GET", "/chat").status == 404
        assert rig.ask("GET", "/v1/files").status == 404
