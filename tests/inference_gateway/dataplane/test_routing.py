"""Which requests reach which replica, and what the others are told."""

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ApiKey, ServiceSettings, digest_of
from tests.inference_gateway.rig import (
    ALICE,
    CLIENT_KEY,
    PATIENCE_S,
    Answer,
    Replica,
    Rig,
    ask,
    early_in_a_minute,
    gateway,
    wait_until,
)

BOB = ApiKey("bob", digest_of("bobs-key"), services=("small",), requests_per_minute=3)
CAROL = ApiKey("carol", digest_of("carols-key"), tokens_per_minute=100)


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    big = ServiceSettings("big", models=("org/big-7b",))
    small = ServiceSettings("small")
    with gateway(directory, big, small, keys=(ALICE, BOB, CAROL), body_limit_mib=1, body_buffer_kib=64) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    running.add("big", servers[0].endpoint)
    running.add("small", servers[1].endpoint)
    yield running
    running.clear()


@pytest.mark.parametrize(
    ("path", "model", "header", "replica"),
    [
        ("/v1/chat/completions", "big", None, "r1"),
        ("/v1/chat/completions", "org/big-7b", None, "r1"),
        ("/v1/chat/completions", "small", None, "r2"),
        ("/services/small/v1/chat/completions", None, None, "r2"),
        ("/v1/chat/completions", None, "small", "r2"),
        ("/services/small/v1/chat/completions", "big", "big", "r2"),
        ("/v1/chat/completions", "small", "big", "r1"),
    ],
)
def test_path_then_header_then_model(rig: Rig, path: str, model: str | None, header: str | None, replica: str) -> None:
    body = {"max_tokens": 1} if model is None else {"messages": [], "model": model}
    answer = rig.ask("POST", path, body, **({"x_service": header} if header else {}))
    assert (answer.status, answer.headers["x-replica"]) == (200, replica)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/chat/completions", {"model": "unknown"}, 404, "no such model"),
        ("POST", "/services/unknown/v1/chat/completions", {}, 404, "no such model"),
        ("GET", "/v1/files", None, 404, "no such path"),
        ("GET", "/state", None, 404, "no such path"),
        ("POST", "/v1/chat/completions", {"messages": []}, 400, "no JSON object"),
        ("POST", "/v1/chat/completions", b"this is no JSON", 400, "no JSON object"),
        ("POST", "/v1/chat/completions", b"", 400, "no JSON object"),
        ("POST", "/v1/chat/completions", b"\xff\x00\xfe" * 100, 400, "no JSON object"),
        ("POST", "/v1/chat/completions", b"[" * 5000, 400, "no JSON object"),
        ("POST", "/v1/chat/completions", {"model": "big", "messages": "x" * 1_200_000}, 413, "larger than 1 MiB"),
    ],
)
def test_what_leads_nowhere_is_told_why(
    rig: Rig, method: str, path: str, body: object, status: int, words: str
) -> None:
    answer = rig.ask(method, path, body)
    assert (answer.status, answer.json["error"]["code"]) == (status, status)
    assert words in answer.json["error"]["message"]


def test_who_has_used_up_their_tokens_is_told_when_to_come_again(rig: Rig) -> None:
    def status(key: str) -> Answer:
        return rig.complete("small", authorization=f"Bearer {key}")

    rig.plane.hold_back({"carol": int(time.time()) + 50})
    refused = status("carols-key")
    assert (refused.status, refused.json["error"]["message"]) == (429, "this key has used up its tokens")
    assert 45 <= int(refused.headers["retry-after"]) <= 50
    assert status(CLIENT_KEY).status == 200
    rig.plane.hold_back({"carol": int(time.time()) - 1})
    assert status("carols-key").status == 200, "the time has come"
    rig.plane.hold_back({"carol": int(time.time()) + 50})
    assert status("carols-key").status == 429
    rig.plane.hold_back({})
    assert status("carols-key").status == 200


def test_a_large_body_is_routed_by_a_model_near_its_start_and_by_path(rig: Rig) -> None:
    large = {"model": "big", "messages": "x" * 500_000}
    assert rig.ask("POST", "/v1/chat/completions", large).headers["x-replica"] == "r1"
    late = {"messages": "x" * 500_000, "model": "big"}
    assert rig.ask("POST", "/services/big/v1/chat/completions", late).headers["x-replica"] == "r1"


def test_a_key_is_needed_in_either_header(rig: Rig) -> None:
    path, body = "/services/big/v1/chat/completions", {"max_tokens": 1}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"authorization": "Basic eDp5"}):
        answer = ask(rig.port, "POST", path, body, headers)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json["error"]["code"] == 401
    assert ask(rig.port, "POST", path, body, {"x-api-key": "the-key-of-alice"}).status == 200
    assert ask(rig.port, "GET", "/healthz").status == 200
    assert ask(rig.port, "GET", "/metrics").status == 401


def test_replicas_never_see_the_key_of_a_client(rig: Rig, servers: list[Replica]) -> None:
    answer = rig.complete("big", x_gateway_service="small", x_api_key="the-key-of-alice")
    assert answer.headers["x-replica"] == "r1"
    seen = servers[0].state["last_headers"]
    assert "authorization" not in seen, "the replica's relay adds the one of its server"
    assert CLIENT_KEY not in json.dumps(seen)
    assert seen["x-gateway-service"] == "big/alice"


def test_a_restricted_key_and_its_quota(rig: Rig) -> None:
    key = {"authorization": "Bearer bobs-key"}
    before = {traffic.service: traffic.arrivals for traffic in rig.plane.traffic()}
    early_in_a_minute()
    statuses = [rig.complete("small", **key).status for _ in range(3)]
    refused = rig.complete("small", **key)
    assert statuses == [200, 200, 200]
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert rig.complete("small").status == 200, "another key has a quota of its own"
    assert ask(rig.port, "POST", "/v1/chat/completions", {"model": "small"}).status == 401
    after = {traffic.service: traffic.arrivals for traffic in rig.plane.traffic()}
    assert after["small"] - before["small"] == 4, "neither 401 nor 429 counts as an arrival"


def test_a_restricted_key_may_not_use_other_services(directory: Path) -> None:
    carol = ApiKey("carol", digest_of("carols-key"), services=("small",))
    with gateway(directory / "restricted", ServiceSettings("big"), ServiceSettings("small"), keys=(carol,)) as rig:
        answer = rig.complete("big", authorization="Bearer carols-key")
        assert (answer.status, answer.json["error"]["message"]) == (403, "this key may not use this service")
        carol_key = {"authorization": "Bearer carols-key"}
        assert listed(rig.ask("GET", "/v1/models", **carol_key)) == ["small"]
        assert listed(rig.ask("GET", "/v1/models", x_gateway_key="alice", **carol_key)) == ["small"]
        assert rig.ask("GET", "/services/big/v1/models", **carol_key).status == 403
        assert rig.ask("GET", "/metrics", **carol_key).status == 403, "they tell of other services"


def test_a_key_of_several_services_may_use_each_of_them_alone(directory: Path) -> None:
    dora = ApiKey("dora", digest_of("doras-key"), services=("small", "big"))
    services = (ServiceSettings(name, cold_start_limit=0) for name in ("big", "small", "smaller", "other"))
    with gateway(directory / "several", *services, keys=(ALICE, dora)) as rig:
        statuses = {
            name: rig.complete(name, authorization="Bearer doras-key").status
            for name in ("big", "small", "smaller", "other")
        }
        assert statuses == {"big": 503, "small": 503, "smaller": 403, "other": 403}
        assert listed(rig.ask("GET", "/v1/models", authorization="Bearer doras-key")) == ["big", "small"]
        assert rig.complete("other").status == 503, "a key without a list may use all"


def test_a_key_that_expires_is_as_good_as_none(directory: Path) -> None:
    """Also on a connection that has shown it before, and without a reload."""
    now_s = int(time.time())
    old = ApiKey("old", digest_of("old-key"), expires_s=now_s)
    soon = ApiKey("soon", digest_of("soon-key"), expires_s=now_s + 12)  # the gateway starts meanwhile
    with gateway(directory / "expiring", ServiceSettings("big"), keys=(ALICE, old, soon)) as rig:
        assert rig.ask("GET", "/v1/models").status == 200
        refused = rig.ask("GET", "/v1/models", authorization="Bearer old-key")
        assert (refused.status, refused.json["error"]["message"]) == (401, "this key has expired")
        link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)

        def status() -> int:
            link.request("GET", "/v1/models", headers={"authorization": "Bearer soon-key"})
            answer = link.getresponse()
            answer.read()
            return answer.status

        assert status() == 200
        wait_until(lambda: status() == 401)
        link.close()


def test_the_metrics_of_a_service_are_not_those_of_the_gateway(rig: Rig) -> None:
    assert rig.ask("GET", "/services/big/metrics").status == 404
    assert rig.ask("GET", "/metrics").status == 200


def listed(answer: Answer) -> list[str]:
    """The models of an answer to /v1/models."""
    return [model["id"] for model in answer.json["data"]]


def test_models_are_listed_without_asking_a_replica(rig: Rig, servers: list[Replica]) -> None:
    before = [server.state["requests"] for server in servers]
    assert listed(rig.ask("GET", "/v1/models")) == ["big", "org/big-7b", "small"]
    assert listed(rig.ask("GET", "/services/big/v1/models")) == ["big", "org/big-7b"]
    assert listed(rig.ask("GET", "/v1/models", x_service="small", x_gateway_only="big")) == ["small"]
    assert rig.ask("GET", "/services/none/v1/models").status == 404
    assert [server.state["requests"] for server in servers] == before


def test_the_access_log_tells_who_and_how_long_but_nothing_secret(rig: Rig) -> None:
    prompt = "what nobody may read"
    rig.ask("POST", '/v1/chat/completions?q="\\]', {"model": "big", "messages": [{"content": prompt}], "max_tokens": 1})
    rig.ask("POST", "/services/big/v1/%22%5d\\x?token=hidden", {"max_tokens": 1})
    rig.ask("POST", '/services/big/v1/"', {"max_tokens": 1})
    rig.ask("POST", "/services/big/" + "\\" * 3000, {"max_tokens": 1})
    assert rig.logged(path="/services/big/v1/%22%5d\\x")["status"] == 404
    assert rig.logged(path="/services/big/v1/#22")["status"] == 404
    # HAProxy keeps 1023 characters of a request's first line.
    assert rig.logged(path=("/services/big/" + "\\" * 3000)[: 1023 - len("POST ")])["status"] == 404
    entry = rig.logged(path="/v1/chat/completions", status=200)
    assert (entry["service"], entry["key"], entry["replica"], entry["method"]) == ("big", "alice", "r1", "POST")
    assert entry["total_ms"] >= 0
    text = rig.plane.files.access_log.read_text()
    for hidden in (prompt, "the-key-of-alice", "hidden"):
        assert hidden not in text


def test_metrics_name_every_service(rig: Rig) -> None:
    rig.complete("big")
    text = rig.ask("GET", "/metrics").body.decode()
    assert 'inference_gateway_replicas{service="big",state="up"} 1.0' in text
    requests = next(
        line for line in text.splitlines() if line.startswith('inference_gateway_requests_total{service="big"')
    )
    assert float(requests.split()[1]) >= 1


def test_every_request_of_a_connection_shows_its_own_key(rig: Rig) -> None:
    """The gateway remembers the last known key of a connection, but only for requests that show it again."""
    alice, bob = {"authorization": f"Bearer {CLIENT_KEY}"}, {"authorization": "Bearer bobs-key"}
    wrong, prefix = {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {CLIENT_KEY[:-1]}"}
    link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=20)
    found = []
    other = {"x-api-key": CLIENT_KEY}
    for headers in (alice, alice, wrong, prefix, {}, {**wrong, **other}, bob, alice, other, {}):
        link.request("POST", "/v1/chat/completions", json.dumps({"model": "big", "max_tokens": 1}), headers)
        answer = link.getresponse()
        answer.read()
        found.append(answer.status)
    link.close()
    # Bob may not use this service, whoever was here before him, and his quota may be used up.
    assert found[6] in {403, 429}
    assert found[:6] + found[7:] == [200, 200, 401, 401, 401, 401, 200, 200, 401]
