"""What the metrics of replicas' servers say: vLLM's text, faults, and what becomes of them."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from inference_gateway.control import replica_metrics
from inference_gateway.control.observations import Question
from inference_gateway.control.replica_metrics import LARGEST_METRICS, load_of, parsed
from inference_gateway.errors import MetricsError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ReplicaLoad
from inference_gateway.replicas.identity import Authority, gateway_context
from inference_gateway.replicas.relay import server_context
from inference_gateway.sections import MetricNames, MetricsSection
from tests.inference_gateway.control.doubles import Rig
from tests.inference_gateway.rig import wait_until
from tests.inference_gateway.wrapped import wrapped

VLLM = MetricsSection().names()

TWO_ENGINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 17.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 15.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 4.0
vllm:num_requests_waiting{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 3.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.95
vllm:kv_cache_usage_perc{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.85
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 140.0
# TYPE python_info gauge
python_info{implementation="CPython",major="3"} 1.0
"""


def gauges(running: object = 3, waiting: object = 2, usage: object = 0.5) -> str:
    return (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\nvllm:kv_cache_usage_perc {usage}\n"
    )


def test_the_engines_of_a_server_are_summed_and_their_caches_averaged() -> None:
    load = parsed(TWO_ENGINES, VLLM)
    assert (load.running, load.waiting) == (32, 7)
    assert load.kv_cache == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("section", "text", "load"),
    [
        (MetricsSection(), gauges().replace("kv_cache_usage", "gpu_cache_usage"), ReplicaLoad(3, 2, 0.5)),
        (
            MetricsSection(server="sglang"),
            'sglang:num_running_reqs{m="x"} 3\nsglang:num_queue_reqs{m="x"} 2\nsglang:token_usage{m="x"} 0.28\n',
            ReplicaLoad(3, 2, 0.28),
        ),
        (MetricsSection(server="tgi"), "tgi_batch_current_size 3\ntgi_queue_size 2\n", ReplicaLoad(3, 2)),
        (MetricsSection(running="a", waiting="b", kv_cache="c"), "a 3\nb 2\nc 0.5\n", ReplicaLoad(3, 2, 0.5)),
        (MetricsSection(), gauges(usage="NaN"), ReplicaLoad(3, 2)),
        (MetricsSection(), gauges(usage=55.0), ReplicaLoad(3, 2)),
    ],
    ids=["an older vLLM", "SGLang", "TGI", "other names", "usage unknown", "usage no share"],
)
def test_each_servers_names_of_metrics_are_known(section: MetricsSection, text: str, load: ReplicaLoad) -> None:
    assert parsed(text, section.names()) == load


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no gauge vllm:num_requests_running"),
        ("<html>not here</html>", "no gauge vllm:num_requests_running"),
        ("vllm:num_requests_running 3\n", "no gauge vllm:num_requests_waiting"),
        (gauges(waiting="NaN"), "vllm:num_requests_waiting is nan"),
        (gauges(running="-1"), "expected numbers of requests"),
        (gauges(running="+Inf"), "expected numbers of requests"),
        (gauges(running="many"), "no metrics in Prometheus' format"),
        ("vllm:num_requests_running", "no metrics in Prometheus' format"),
        ('vllm:num_requests_running{a="1 3\n', "no "),
    ],
)
def test_unusable_metrics_are_a_fault_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(MetricsError, match=words.replace("'", ".")):
        parsed(text, VLLM)


@contextmanager
def answering(directory: Path, status: int, body: bytes) -> Iterator[Callable[[], ReplicaLoad]]:
    """The replica `chat-1` with such an answer; yields what asks it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            with suppress(OSError):  # the reader may have had enough
                self.wfile.write(body)

        def log_message(self, *_parts: object) -> None:
            """Say nothing."""

    authority = Authority.of(directory / "identity")
    (directory / "chat-1.pem").write_text(authority.replica("chat-1"))
    context = server_context(directory / "chat-1.pem", directory / "identity" / "authority.pem")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        question = Question("chat-1", 0, "127.0.0.1", server.server_address[1], "/metrics")
        yield lambda: load_of(question, gateway_context(directory / "identity"), VLLM)
        thread.join()


def test_a_replica_is_read_over_its_own_connection(tmp_path: Path) -> None:
    with answering(tmp_path, 200, TWO_ENGINES.encode()) as read:
        assert read().waiting == 7


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"", "/metrics answers with status 404"),
        (200, b"\xff\x00\xfe" * 1000, "no gauge"),
        (200, b"x" * (LARGEST_METRICS + 1), "/metrics gives more than 8 MiB"),
    ],
    ids=["none", "garbage", "too much"],
)
def test_other_answers_are_faults(tmp_path: Path, status: int, body: bytes, words: str) -> None:
    with answering(tmp_path, status, body) as read, pytest.raises(MetricsError, match=words):
        read()


def test_a_closed_port_is_a_fault(tmp_path: Path) -> None:
    Authority.of(tmp_path / "identity")
    with pytest.raises(MetricsError, match="/metrics: .*refused"):
        load_of(Question("chat-1", 0, "127.0.0.1", 1, "/metrics"), gateway_context(tmp_path / "identity"), VLLM)


def test_a_real_replica_reports_its_waiting_requests(tmp_path: Path) -> None:
    """Through its relay, with two requests at a time and three on their way."""
    paths = GatewayPaths(tmp_path)
    paths.make()
    with wrapped(paths, "chat-1", "--max-num-seqs", "2", "--first-token-ms", "600000") as replica:
        where = ("chat-1", 0, replica.endpoint.host, replica.endpoint.port)
        context = gateway_context(paths.identity)

        def load() -> ReplicaLoad | None:
            with suppress(MetricsError):  # it starts
                return load_of(Question(*where, "/metrics"), context, VLLM)
            return None

        wait_until(lambda: load() == ReplicaLoad(0, 0, 0.0))
        body = b'{"max_tokens": 1}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with ExitStack() as links:
            for _ in range(3):
                plain = links.enter_context(socket.create_connection(where[2:], timeout=30))
                links.enter_context(context.wrap_socket(plain, server_hostname="chat-1")).sendall(head + body)
            wait_until(lambda: load() == ReplicaLoad(2, 1, 1.0))


class Servers:
    """Replicas by what they answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.load = ReplicaLoad(1, 3, 0.2)
        self.fault = ""

    def __call__(self, _question: Question, _context: object, _names: MetricNames) -> ReplicaLoad:
        self.asked += 1
        if self.fault:
            raise MetricsError(self.fault)
        return self.load


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    found = Servers()
    monkeypatch.setattr(replica_metrics, "load_of", found)
    return found


def test_replicas_of_a_service_without_the_key_are_not_asked(rig: Rig, servers: Servers) -> None:
    rig.serve(1)
    assert rig.tick(10).replicas[0].load is None
    assert servers.asked == 0


def test_metrics_are_read_every_other_second_and_reported(tmp_path: Path, servers: Servers) -> None:
    rig = Rig(tmp_path, metrics={})
    rig.serve(1)
    before = servers.asked
    assert rig.tick(20).replicas[0].load == servers.load
    assert servers.asked - before == 10


def test_a_decision_names_requests_waiting_inside_replicas(tmp_path: Path, servers: Servers) -> None:
    rig = Rig(tmp_path, metrics={})
    rig.set_load(4)
    rig.serve(2)
    shown = rig.tick(5)
    assert (shown.in_flight, shown.queued) == (4, 0), "as the data plane counts"
    assert "4 of the queued wait inside replicas" in shown.reason
    assert servers.asked


def test_a_fault_is_logged_once_and_scaling_continues(tmp_path: Path, servers: Servers) -> None:
    rig = Rig(tmp_path, metrics={})
    servers.fault = "/metrics answers with status 404"
    rig.set_load(4)
    rig.serve(2)
    shown = rig.tick(100)
    assert [replica.load for replica in shown.replicas] == [None, None]
    assert {replica.metrics_fault for replica in shown.replicas} == {servers.fault}
    assert servers.asked <= 2 * math.ceil(102 / replica_metrics.METRICS_RETRY_S), "seldom"
    assert (shown.wanted, "inside" in shown.reason) == (2, False)
    servers.fault, servers.load = "", ReplicaLoad(2, 0, 0.2)
    assert [replica.load for replica in rig.tick(40).replicas] == [servers.load] * 2
    assert rig.events().count("metrics cannot be read") == rig.events().count("metrics are read again") == 2


def test_an_old_reading_is_not_used(tmp_path: Path, servers: Servers) -> None:
    rig = Rig(tmp_path, metrics={})
    rig.serve(1)
    assert rig.tick(4).replicas[0].load is not None
    servers.fault = "/metrics: timed out"
    assert rig.tick(5).replicas[0].load is not None
    assert rig.tick(10).replicas[0].load is None
