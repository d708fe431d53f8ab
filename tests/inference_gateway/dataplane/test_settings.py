"""What the data plane accepts: nothing that could end up as another word of HAProxy's configuration."""

from pathlib import Path
from typing import Any

import pytest

from inference_gateway.dataplane.settings import (
    ApiKey,
    GatewaySettings,
    HealthSettings,
    ServiceSettings,
    Trust,
    digest_of,
)
from inference_gateway.errors import SettingsError

DIGEST = digest_of("x")


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (ServiceSettings, {"name": "a b"}, "name: found 'a b', accepted: letters"),
        (ServiceSettings, {"name": "a\n    server x"}, "name"),
        (ServiceSettings, {"name": ""}, "name"),
        (ServiceSettings, {"name": "a", "models": ("x y",)}, "service a: models"),
        (
            ServiceSettings,
            {"name": "a", "paths": ("/x y",)},
            "service a: paths: found '/x y', accepted: absolute paths",
        ),
        (ServiceSettings, {"name": "a", "queue_deadline_s": 0.0}, "queue_deadline_s: found 0.0, accepted: 0.001 to"),
        (ServiceSettings, {"name": "a", "queue_deadline_s": float("nan")}, "found nan"),
        (ServiceSettings, {"name": "a", "queue_limit": -1}, "queue_limit: found -1"),
        (ServiceSettings, {"name": "a", "repeat_posts": "always"}, "accepted: never-sent, unanswered"),
        (HealthSettings, {"path": "health"}, "health.path"),
        (HealthSettings, {"path": "/x if TRUE"}, "health.path"),
        (HealthSettings, {"fall": 0}, "health.fall"),
        (ApiKey, {"name": "a", "digest": "abc"}, "key a: digest: found something else"),
        (ApiKey, {"name": "a", "digest": DIGEST.lower()}, "digest"),
        (ApiKey, {"name": "a", "digest": DIGEST, "requests_per_minute": 0}, "requests_per_minute"),
        (ApiKey, {"name": "a", "digest": DIGEST, "services": ("x y",)}, "services"),
        (GatewaySettings, {"directory": Path("relative"), "port": 1}, "directory"),
        (GatewaySettings, {"directory": Path("/" + "x" * 100), "port": 1}, "at most 80"),
        (GatewaySettings, {"directory": Path("/x y"), "port": 1}, "directory"),
        (GatewaySettings, {"directory": Path("/x"), "port": 0}, "port: found 0"),
        (GatewaySettings, {"directory": Path("/x"), "port": 1, "host": "a b"}, "host"),
        (GatewaySettings, {"directory": Path("/x"), "port": 1, "authentication": "maybe"}, "keys, none"),
        (GatewaySettings, {"directory": Path("/x"), "port": 1, "certificate": Path("/x y")}, "certificate"),
    ],
)
def test_a_wrong_value_is_named(kind: type, values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words.replace("(", r"\(")):
        kind(**values)


def test_names_are_there_once() -> None:
    one, other = ServiceSettings("one", models=("m",)), ServiceSettings("other", models=("m",))
    with pytest.raises(SettingsError, match="model 'm' is there twice"):
        GatewaySettings(Path("/x"), 1, services=(one, other))
    with pytest.raises(SettingsError, match="service 'one' is there twice"):
        GatewaySettings(Path("/x"), 1, services=(one, one))
    with pytest.raises(SettingsError, match="model 'one' is there twice"):
        GatewaySettings(Path("/x"), 1, services=(one, ServiceSettings("two", models=("one",))))
    with pytest.raises(SettingsError, match="digest of key"):
        GatewaySettings(Path("/x"), 1, keys=(ApiKey("a", DIGEST), ApiKey("b", DIGEST)))


def test_a_service_answers_to_its_name_and_its_models() -> None:
    service = ServiceSettings("a", models=("m", "a"))
    assert service.served_models == ("a", "m")
    assert GatewaySettings(Path("/x"), 1, services=(service,)).service("a") is service
    with pytest.raises(SettingsError, match=r"no service 'b' \(known: a\)"):
        GatewaySettings(Path("/x"), 1, services=(service,)).service("b")


def test_only_who_finds_no_replica_is_given_the_time_of_a_cold_start_and_an_answer() -> None:
    brisk, usual = ServiceSettings("a", response_timeout_s=10.0), ServiceSettings("a")
    assert [(one.queued_timeout_s, one.held_timeout_s) for one in (brisk, usual)] == [(310.0, 320.0), (600.0, 910.0)]


def test_keys_are_not_printed() -> None:
    assert "hidden" not in repr(GatewaySettings(Path("/x"), 1, trust=Trust("shown", "hidden")))
