"""From the services file to the data plane: every value arrives where it is meant."""

from pathlib import Path

import pytest
import yaml

from inference_gateway import services
from inference_gateway.accepted import Accepted, retry_after_s
from inference_gateway.dataplane.settings import ApiKey, HealthSettings, digest_of
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas.identity import Authority

KEYS = (ApiKey("alice", digest_of("k")),)
CHAT = {
    "models": ["llama"],
    "paths": ["/v1/x"],
    "concurrency": 3,
    "requests_per_s": 7,
    "queue_limit": 11,
    "queue_deadline_s": 12,
    "queue_target_s": 13,
    "cold_start_limit": 14,
    "cold_start_deadline_s": 15,
    "response_timeout_s": 16,
    "repeat_posts": "unanswered",
    "replica": {"command": "serve {port}"},
    "health": {"path": "/up", "interval_s": 17, "timeout_s": 18, "fall": 19, "rise": 20},
    "scale": {"start_s": 21},
}
LISTEN = {"host": "10.1.2.3", "port": 8081, "keys": "keys.yaml", "certificate": "c.pem", "threads": 2,
          "connection_limit": 1234, "body_limit_mib": 5, "source_connections": 6, "source_connections_per_s": 7,
          "request_timeout_s": 8}  # fmt: skip


def test_every_setting_reaches_the_control_plane(tmp_path: Path) -> None:
    data = {"directory": "state", "listen": LISTEN, "services": {"chat": CHAT}}
    section = services.parse(yaml.safe_dump(data), tmp_path / "services.yaml")
    paths = GatewayPaths(section.state_directory)
    paths.make()
    found = Accepted(tmp_path, section, KEYS, "", "", certificate="PEM").settings(Path("/run/g"))
    assert (found.directory, found.host, found.port) == (Path("/run/g"), "10.1.2.3", 8081)
    assert (found.authentication, found.keys, found.certificate) == ("keys", KEYS, "PEM")
    assert (found.threads, found.connection_limit, found.body_limit_mib) == (2, 1234, 5)
    assert (found.source_connections, found.source_connections_per_s, found.request_timeout_s) == (6, 7, 8)
    (chat,) = found.services
    assert (chat.name, chat.models, chat.queue_limit, chat.queue_deadline_s) == ("chat", ("llama",), 11, 12)
    assert (chat.queue_target_s, chat.requests_per_s, chat.concurrency) == (13, 7, 3)
    assert (chat.cold_start_limit, chat.cold_start_deadline_s, chat.response_timeout_s) == (14, 15, 16)
    assert (chat.retry_after_s, chat.repeat_posts) == (21, "unanswered")
    assert found.trust == Authority.of(paths.identity).trust
    assert chat.paths == ("/v1/x",)
    given = {name: getattr(chat.health, name) for name in ("path", "interval_s", "timeout_s", "fall", "rise")}
    assert given == CHAT["health"]
    plain = HealthSettings()
    assert (chat.health.floor_share, chat.health.ejection_s) == (plain.floor_share, plain.ejection_s)
    assert plain.floor_share >= 0.5, "half of the replicas stay in, however sick they look"


def test_without_a_file_of_keys_no_key_is_required(tmp_path: Path) -> None:
    data = {"listen": {"host": "127.0.0.1"}, "directory": "state", "services": {"chat": CHAT}}
    section = services.parse(yaml.safe_dump(data), tmp_path / "services.yaml")
    paths = GatewayPaths(section.state_directory)
    paths.make()
    found = Accepted(tmp_path, section, (), "", "").settings(Path("/run/g"))
    assert (found.authentication, found.keys, found.certificate) == ("none", (), None)


@pytest.mark.parametrize(("handover_s", "limit_s"), [(300, 3600), (7200, 7200)])
def test_after_a_handover_haproxy_may_finish_as_long_as_its_job_waits(
    tmp_path: Path, handover_s: int, limit_s: int
) -> None:
    data = {"directory": "state", "job": {"handover_s": handover_s}, "services": {"chat": CHAT}}
    section = services.parse(yaml.safe_dump({**data, "listen": {"host": "127.0.0.1"}}), tmp_path / "services.yaml")
    GatewayPaths(section.state_directory).make()
    assert Accepted(tmp_path, section, (), "", "").settings(Path("/run/g")).leaving_limit_s == limit_s


@pytest.mark.parametrize(("start_s", "told"), [(0.2, 1), (30.4, 30), (30.6, 31), (1e9, 86_400)])
def test_a_refused_client_is_told_to_retry_after_a_start(start_s: float, told: int) -> None:
    assert retry_after_s(start_s) == told
