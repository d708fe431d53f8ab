"""HAProxy's buffers, which lie one behind the other, do not contend for the same places of a cache."""

from itertools import pairwise
from pathlib import Path

import pytest

from inference_gateway.dataplane.configuration import buffer_bytes, render
from inference_gateway.dataplane.settings import GatewaySettings

CACHE_WAY_BYTES = 64 * 1024
"""Addresses with the same remainder contend: 1,024 sets of 64 bytes, as in many second-level caches."""


@pytest.mark.parametrize("kib", [16, 32, 48, 64, 128, 1024])
def test_the_beginnings_of_sixteen_buffers_are_apart_in_a_cache(kib: int) -> None:
    size = buffer_bytes(GatewaySettings(Path("/gateway"), 1, body_buffer_kib=kib))
    places = sorted(number * size % CACHE_WAY_BYTES for number in range(16))
    assert all(following - one >= 2048 for one, following in pairwise([*places, places[0] + CACHE_WAY_BYTES]))


@pytest.mark.parametrize("kib", [16, 64])
def test_haproxy_is_told_a_buffer_that_holds_what_the_settings_promise(kib: int) -> None:
    settings = GatewaySettings(Path("/gateway"), 1, body_buffer_kib=kib)
    assert f"    tune.bufsize {buffer_bytes(settings)}\n" in render(settings, {}, 100)
    assert buffer_bytes(settings) >= kib * 1024
