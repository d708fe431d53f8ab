"""What the activator relays is what the client has sent, and nothing of another client's."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ApiKey, ServiceSettings, digest_of
from inference_gateway.model import Endpoint
from tests.inference_gateway.rig import ALICE, Rig, gateway

BOB = ApiKey("bob", digest_of("bobs-key"), services=("two",))
PATH = "/v1/chat/completions"


@dataclass(slots=True)
class Replica:
    """A model server that sets a cookie, and keeps the headers and the body of each request."""

    endpoint: Endpoint
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def replica(name: str) -> Iterator[Replica]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            found.seen.append((headers, self.rfile.read(int(headers["content-length"]))))
            self._answer()

        def _answer(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.send_header("set-cookie", f"session=of-{name}")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Replica(Endpoint(name, "127.0.0.1", server.server_port, 8))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    with gateway(directory, ServiceSettings("one"), ServiceSettings("two"), keys=(ALICE, BOB)) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig) -> Iterator[Rig]:
    yield running
    running.clear()


def test_a_cookie_of_one_client_is_not_sent_for_another(rig: Rig) -> None:
    def long(model: str) -> bytes:
        return json.dumps({"messages": "x" * 500_000, "model": model, "tools": []}).encode()

    with replica("r1") as one, replica("r2") as two:
        rig.add("one", one.endpoint)
        rig.add("two", two.endpoint)
        assert rig.ask("POST", PATH, long("one")).headers["set-cookie"] == "session=of-r1"
        assert rig.ask("POST", PATH, long("two"), authorization="Bearer bobs-key").status == 200
        assert rig.ask("POST", PATH, long("one"), cookie="session=mine").status == 200
        assert [headers.get("cookie") for headers, _ in two.seen] == [None]
        assert [headers.get("cookie") for headers, _ in one.seen] == [None, "session=mine"]
        rig.clear()


def test_a_compressed_body_reaches_the_replica_as_it_was_sent(rig: Rig) -> None:
    plain = json.dumps({"model": "one", "messages": "word " * 2000}).encode()
    sent = gzip.compress(plain)
    with replica("r1") as one:
        rig.add_soon("one", one.endpoint)
        assert rig.ask("POST", PATH, sent, x_service="one", content_encoding="gzip").status == 200, "it has waited"
        assert rig.ask("POST", PATH, sent, x_service="one", content_encoding="gzip").status == 200
        rig.settle()
        found = [(headers["content-encoding"], headers["content-length"], body) for headers, body in one.seen]
        assert found == [("gzip", str(len(sent)), sent)] * 2
        refused = rig.ask("POST", PATH, sent, content_encoding="gzip")
        assert (refused.status, "compressed" in refused.json["error"]["message"]) == (400, True)
        assert rig.ask("POST", PATH, plain, content_encoding="identity").status == 200
        rig.clear()
