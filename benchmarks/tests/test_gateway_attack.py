"""The attack suite itself: every attack runs, in small, and its figures are there and as they should be."""

import json

import pytest
from click.testing import CliRunner

from benchmarks import gateway_attack

NOTHING = ("keyless_open", "keyless_forwarded", "keyless_cold_starts", "admin_reached", "smuggling_smuggled",
           "stranger_answers_forged", "stranger_secrets_seen")  # fmt: skip


def test_nothing_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_attack, "QUIET_S", 0.3)
    done = CliRunner().invoke(gateway_attack.main, ["--requests", "100", "--connections", "20", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.output)
    assert {name: figures[name] for name in NOTHING} == dict.fromkeys(NOTHING, 0.0)
    assert (figures["keyless_requests"], figures["silent_connections"], figures["stranger_listened"]) == (100, 20, 1)
    assert figures["silent_left_open"] == 20, "as few of one address stay as long as the time for a request lasts"
    assert figures["smuggling_passed"] > 0, "requests with a good key arrive"
