"""The replay of `gateway_affinity`, by hand."""

import pytest

from benchmarks.gateway_affinity import BoundedRing, Replica, Request, Speed, least_outstanding, replay, reusable

SPEED = Speed(prefill_tokens_per_s=512.0, token_s=0.5)


def request(at_s: float, *blocks: int, output: int = 2) -> Request:
    return Request(round(1000 * at_s), 512 * len(blocks), output, blocks)


def test_what_is_reusable() -> None:
    assert reusable([request(0, 1, 2), request(1, 1, 2, 3), request(2, 4)]) == pytest.approx(2 / 6)


def test_one_replica_computes_what_it_has_not() -> None:
    """Two blocks take 2 s; the next request has them, waits for its own block, and behind it one with nothing known."""
    requests = [request(0, 1, 2), request(1, 1, 2, 3), request(1, 9)]
    hits, wait_s = replay(requests, [Replica(10)], least_outstanding, SPEED)
    assert (hits, wait_s) == (pytest.approx(2 / 6), 3.0)


def test_a_cache_forgets_what_was_used_longest_ago() -> None:
    replica = Replica(3)
    assert [replica.use(blocks) for blocks in ((1, 2), (3,), (1,), (4,), (1, 2))] == [0, 0, 1, 0, 1]


def test_a_hit_ends_at_the_first_block_that_is_not_there() -> None:
    replica = Replica(10)
    replica.use((1, 3))
    assert replica.use((1, 2, 3)) == 1


def test_the_fewest_requests() -> None:
    replicas = [Replica(1, requests=2), Replica(1, requests=1), Replica(1, requests=3)]
    assert least_outstanding(request(0, 1), replicas) == 1
    even = [Replica(1) for _ in range(3)]
    assert {least_outstanding(Request(at, 0, 0, ()), even) for at in range(3)} == {0, 1, 2}


def test_the_ring_keeps_a_session_and_leaves_a_replica_with_twice_the_mean() -> None:
    ring = BoundedRing(4)
    idle = [Replica(1) for _ in range(4)]
    homes = {first: ring(request(0, first, 2, 3, 4), idle) for first in range(40)}
    assert set(homes.values()) == {0, 1, 2, 3}
    assert all(ring(request(9, first, 2, 3, 4, 5, 6), idle) == home for first, home in homes.items())
    busy = [Replica(1, requests=3) for _ in range(4)]
    busy[homes[0]].requests = 5  # with this request 15 of four: at most 8
    assert ring(request(0, 0, 2, 3, 4), busy) == homes[0]
    busy[homes[0]].requests = 12  # with this request 22: at most 11
    assert ring(request(0, 0, 2, 3, 4), busy) != homes[0]
