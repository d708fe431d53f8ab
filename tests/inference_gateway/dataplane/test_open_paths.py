"""Which paths of a replica clients reach: those that its service names, however a path is written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_gateway.dataplane.open_paths import USUAL_PATHS
from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import Replica, Rig, gateway

SERVICES = (
    ServiceSettings("usual"),
    ServiceSettings("more", paths=(*USUAL_PATHS, "/state", "/v1/files/*")),
    ServiceSettings("all", paths=("/*",)),
)


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    with gateway(directory, *SERVICES) as rig:
        yield rig


@pytest.fixture(scope="module")
def alike(directory: Path) -> Iterator[Rig]:
    """Where all services have the same paths."""
    with gateway(directory / "alike", SERVICES[0]) as rig:
        yield rig


@pytest.fixture(params=["running", "alike"])
def any_rig(request: pytest.FixtureRequest, servers: list[Replica]) -> Iterator[Rig]:
    rig: Rig = request.getfixturevalue(request.param)
    rig.add("usual", servers[0].endpoint)
    yield rig
    rig.clear()


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    for service in SERVICES:
        running.add(service.name, servers[0].endpoint)
    yield running
    running.clear()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/behaviour"),
        ("GET", "/state"),
        ("POST", "/sleep"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/reset_prefix_cache"),
        ("POST", "/metrics"),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/usual"),
        ("GET", "/v1/models/../../state"),
        ("GET", "/v1/models/%2e%2e/state"),
        ("GET", "/v1/models//state"),
        ("PUT", "/v1/chat/completions/../../behaviour"),
        ("PUT", "/v1/chat/completions/%2e%2e/%2e%2e/behaviour"),
        ("PUT", "//behaviour"),
        ("PUT", "/%62ehaviour"),
        ("PUT", "/v1/chat/../../behaviour"),
        ("PUT", "/healthz/../behaviour"),
        ("OPTIONS", "*"),
        ("PUT", "http://x/behaviour"),
    ],
)
@pytest.mark.parametrize("way", ["/services/usual", "x-service", "body"])
def test_what_is_not_named_is_refused_before_it_counts(any_rig: Rig, method: str, path: str, way: str) -> None:
    before = {traffic.service: traffic.arrivals for traffic in any_rig.plane.traffic()}
    target = way + path if way.startswith("/") and path.startswith("/") else path
    headers = {"x_service": "usual"} if way == "x-service" else {}
    answer = any_rig.ask(method, target, {"model": "usual", "fault": "status-500"}, **headers)
    assert (answer.status, answer.json["error"]["type"]) == (404, "gateway_error")
    assert {traffic.service: traffic.arrivals for traffic in any_rig.plane.traffic()} == before
    assert any_rig.complete("usual").status == 200


def test_models_are_listed_for_a_service_that_opens_less_than_others(rig: Rig) -> None:
    assert [model["id"] for model in rig.ask("GET", "/services/usual/v1/models").json["data"]] == ["usual"]
    assert rig.ask("GET", "/services/usual/v1/models/usual").json["id"] == "usual"
    assert rig.ask("GET", "/services/usual/v1/models/more").status == 404


def test_a_service_may_open_more(rig: Rig) -> None:
    assert rig.ask("GET", "/services/more/state").json["name"] == "r1"
    assert rig.ask("GET", "/services/all/state").json["name"] == "r1"
    assert rig.ask("GET", "/services/all/v1/chat/completions").status == 405, "the replica's own answer"


def test_a_service_does_not_have_the_paths_of_another(rig: Rig) -> None:
    for path in ("/state", "/v1/files/f-1"):
        answer = rig.ask("GET", f"/services/usual{path}")
        assert "no such path" in answer.json["error"]["message"]
    long = {"messages": "x" * 200_000, "model": "usual"}
    assert "no such path" in rig.ask("POST", "/v1/files/f-1", long).json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/files/f-1", "/v1/files/f-1/content", "/v1/files/a.b"])
def test_what_lies_below_an_open_path_is_passed_on(rig: Rig, path: str) -> None:
    answer = rig.ask("GET", f"/services/more{path}")
    assert (answer.status, answer.json["error"]["message"]) == (404, "Not Found"), "the replica's own answer"


@pytest.mark.parametrize("tail", ["../state", "%2e%2e/x", "/x", "x/.", "x;y", "a\\b", ".hidden"])
def test_below_an_open_path_nothing_is_written_oddly(rig: Rig, tail: str) -> None:
    answer = rig.ask("GET", f"/services/more/v1/files/{tail}")
    assert "no such path" in answer.json["error"]["message"]


def test_the_usual_paths_reach_the_replica(rig: Rig) -> None:
    for path in USUAL_PATHS:
        answer = rig.ask("POST", f"/services/usual{path}", {"max_tokens": 1})
        assert b"gateway_error" not in answer.body, path
