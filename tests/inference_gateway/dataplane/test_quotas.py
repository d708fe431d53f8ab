"""A key that has used up its requests per minute is told when the next one is admitted."""

from __future__ import annotations

import time
from pathlib import Path

from inference_gateway.dataplane.settings import ApiKey, ServiceSettings, digest_of
from tests.inference_gateway.rig import Replica, early_in_a_minute, gateway

KEY = {"authorization": "Bearer the-key"}


def test_who_comes_at_the_told_time_is_admitted(directory: Path, servers: list[Replica]) -> None:
    key = ApiKey("k" * 63, digest_of("the-key"), requests_per_minute=30)
    with gateway(directory, ServiceSettings("a"), keys=(key,)) as rig:
        rig.add("a", servers[0].endpoint)
        early_in_a_minute()
        statuses = [rig.complete("a", **KEY).status for _ in range(30)]
        refused = rig.complete("a", **KEY)
        told_s = int(refused.headers["retry-after"])
        minute_ends_s = 60 - time.time() % 60
        assert (statuses, refused.status) == ([200] * 30, 429)
        assert minute_ends_s <= told_s <= 60
        time.sleep(told_s)
        early_in_a_minute()
        assert [rig.complete("a", **KEY).status for _ in range(31)] == [200] * 30 + [429]
