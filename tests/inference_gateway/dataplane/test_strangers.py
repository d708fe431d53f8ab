"""A replica's address is not its proof: who listens there without its certificate is sent nothing."""

import csv
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference_gateway.control.observations import Question, ready
from inference_gateway.dataplane.endpoints import read_services
from inference_gateway.dataplane.health import HealthLoop
from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.dataplane.settings import HealthSettings, ServiceSettings
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import Endpoint
from inference_gateway.replicas import submission
from inference_gateway.replicas.identity import Authority, gateway_context
from inference_gateway.replicas.reports import Tokens, reading_of, usage_of
from tests.inference_gateway.rig import CLIENT_KEY, Rig, gateway, wait_until
from tests.inference_gateway.strangers import Stranger, stranger
from tests.inference_gateway.wrapped import WrappedReplica, wrapped

PROMPT = "what nobody else may read"
HEALTH = HealthSettings(interval_s=0.2, rise=1)


@pytest.fixture(scope="module")
def paths(directory: Path) -> GatewayPaths:
    found = GatewayPaths(directory / "state")
    found.root.mkdir()
    found.make()
    return found


@pytest.fixture
def rig(directory: Path, paths: GatewayPaths) -> Iterator[Rig]:
    chat = ServiceSettings("chat", health=HEALTH, cold_start_deadline_s=2.0, repeat_posts="unanswered")
    with gateway(directory, chat, trust=Authority.of(paths.identity).trust) as running:
        yield running
        running.clear()


@pytest.fixture
def replica(paths: GatewayPaths) -> Iterator[WrappedReplica]:
    name = submission.new_name("chat")
    with wrapped(paths, name) as started:
        context = gateway_context(paths.identity)
        question = Question(name, 0, started.endpoint.host, started.endpoint.port, "/health")
        wait_until(lambda: ready(question, context))
        yield started


def asked(rig: Rig) -> int:
    """The status of a request; 502 also for no answer, HAProxy's where a connection that requests share has broken."""
    try:
        return rig.complete("chat", {"messages": [{"role": "user", "content": PROMPT}]}).status
    except http.client.RemoteDisconnected:
        return 502


def learnt_nothing(seen: Stranger, *secrets: str) -> bool:
    """Nothing but the beginning of a TLS handshake, and not even a name."""
    return not any(secret.encode() in seen.received for secret in (PROMPT, CLIENT_KEY, "HTTP/1.1", "Bearer", *secrets))


def test_a_replica_proves_itself_and_gets_its_own_key(rig: Rig, replica: WrappedReplica) -> None:
    rig.add("chat", replica.endpoint)
    assert asked(rig) == 200
    streamed = rig.complete("chat", {"stream": True, "max_tokens": 3})
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert rig.complete("chat", {"messages": "x" * 3_000_000, "max_tokens": 1}).status == 200
    wait_until(lambda: rig.replica_states("chat") == {replica.endpoint.name: "up"})


def test_clients_share_a_proved_connection(rig: Rig, replica: WrappedReplica) -> None:
    """One that comes for a single request needs no handshake with the replica."""
    rig.add("chat", replica.endpoint)
    assert [asked(rig) for _ in range(4)] == [200] * 4
    header, *rows = csv.reader(RuntimeApi(rig.plane.files.stats_socket).ask("show stat").splitlines())
    [found] = (dict(zip(header, row, strict=True)) for row in rows if row[1:2] == [replica.endpoint.name])
    assert int(found["reuse"]) >= 2, "the first one makes a connection; the server may have closed it once"


def test_its_relay_counts_tokens_by_key(rig: Rig, paths: GatewayPaths, replica: WrappedReplica) -> None:
    """Of plain answers, of streams with and without `usage`, and of one whose client leaves."""
    rig.add("chat", replica.endpoint)
    prompt = [{"role": "user", "content": "two words"}]
    told = rig.complete("chat", {"messages": prompt, "max_tokens": 5}).json["usage"]
    stream = {"messages": prompt, "stream": True, "max_tokens": 7}
    rig.complete("chat", {**stream, "stream_options": {"include_usage": True}}, x_gateway_service="chat/bob")
    rig.complete("chat", stream)
    with socket.create_connection(("127.0.0.1", rig.port)) as link:
        body = json.dumps({"model": "chat", "stream": True, "max_tokens": 100_000})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {CLIENT_KEY}\r\n"
        link.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        assert link.recv(1)

    def reported() -> Tokens:
        found = usage_of(paths.replica(replica.endpoint.name))
        return found.by_key["alice"] if found else Tokens()

    wait_until(lambda: reported().requests == 4)
    found = reported()
    assert (found.prompt, found.estimated) == (2 * told["prompt_tokens"], 2)
    assert found.completion >= 5 + 7 + 7 + 1


def test_its_job_reports_what_its_server_reads(rig: Rig, paths: GatewayPaths, replica: WrappedReplica) -> None:
    rig.add("chat", replica.endpoint)
    for _ in range(3):
        rig.complete("chat", {"messages": "x" * 5000, "stream": True, "max_tokens": 2})
    wait_until(lambda: len(reading_of(paths.replica(replica.endpoint.name))) >= 3)
    assert all(one.amount > 5000 for one in reading_of(paths.replica(replica.endpoint.name)))


def test_a_reload_knows_replicas_by_their_certificates(rig: Rig, replica: WrappedReplica) -> None:
    rig.add("chat", replica.endpoint)
    rig.plane.apply(replace(rig.plane.settings, body_limit_mib=7))
    assert asked(rig) == 200
    wait_until(lambda: rig.replica_states("chat") == {replica.endpoint.name: "up"})


def test_the_first_request_of_all_asks_for_proof_too(rig: Rig, replica: WrappedReplica) -> None:
    """The activator, which holds it, connects to the replica by itself."""
    rig.add_soon("chat", replica.endpoint)
    assert asked(rig) == 200


def test_who_listens_in_a_replicas_place_learns_nothing(rig: Rig, replica: WrappedReplica) -> None:
    """Neither from the checks nor from requests that HAProxy or the activator would send."""
    rig.add("chat", replica.endpoint)
    assert asked(rig) == 200
    with stranger(0) as seen:
        rig.add("chat", replace(replica.endpoint, port=seen.port))
        statuses = {asked(rig)}
        wait_until(lambda: seen.connections > 3)
        wait_until(lambda: rig.replica_states("chat") == {replica.endpoint.name: "down"})
        statuses.add(asked(rig))
        assert statuses <= {502, 503}
        assert learnt_nothing(seen, replica.key_file.read_text().strip())
        rig.add("chat", replica.endpoint)
        wait_until(lambda: asked(rig) == 200)


def test_a_stranger_that_is_registered_learns_nothing(rig: Rig, paths: GatewayPaths) -> None:
    """As if a registration were forged: the gateway was told of a port that is not the replica's."""
    with stranger(0) as seen:
        rig.add_soon("chat", Endpoint("chat-0", "127.0.0.1", seen.port, 8))
        assert asked(rig) in {502, 503}
        rig.settle()
        assert asked(rig) in {502, 503}
        question = Question("chat-0", 0, "127.0.0.1", seen.port, "/health")
        assert not ready(question, gateway_context(paths.identity))
    assert seen.connections > 0
    assert learnt_nothing(seen)


def test_a_replica_that_is_suspended_is_not_kept_in(rig: Rig) -> None:
    """As a stopped process: the kernel accepts connections for it, and nobody answers."""
    with socket.socket() as suspended:
        suspended.bind(("127.0.0.1", 0))
        suspended.listen(100)
        rig.add("chat", Endpoint("r1", "127.0.0.1", suspended.getsockname()[1], 4))
        wait_until(lambda: rig.replica_states("chat") == {"r1": "down"})
        rounds = HealthLoop(rig.plane.files)
        held = read_services(rig.plane.files.services)
        assert [rounds.run_round(held, float(second)) for second in range(3)] == [[]] * 3
        assert rig.replica_states("chat") == {"r1": "down"}
        assert "kept in" not in rig.plane.files.activator_log.read_text()


def test_another_replica_at_the_address_is_refused(rig: Rig, replica: WrappedReplica) -> None:
    """Each is known by its own name: one of another service does not get this one's prompts."""
    rig.add("chat", replace(replica.endpoint, name="chat-other"))
    assert asked(rig) in {502, 503}


def test_without_proof_a_stranger_would_have_it_all(directory: Path) -> None:
    """That these tests can fail: the same listener, and a data plane that trusts addresses."""
    with gateway(directory / "trusting", ServiceSettings("chat", health=HEALTH)) as rig, stranger(0) as seen:
        rig.add("chat", Endpoint("chat-0", "127.0.0.1", seen.port, 8))
        assert rig.complete("chat", {"messages": [{"role": "user", "content": PROMPT}]}).body == b"forged"
        assert not learnt_nothing(seen)
