"""The replay of `gateway_affinity`, by hand."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.gateway_affinity import BoundedRing, Replica, Request, Speed, least_outstanding, main, replay, reusable

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


def measured(folder: Path, *rows: tuple[float, list[int]]) -> Result:
    """What the command says of requests, each a time in ms and its blocks."""
    lines = [
        {"timestamp": at_ms, "input_length": 512 * len(blocks), "output_length": 2, "hash_ids": blocks}
        for at_ms, blocks in rows
    ]
    (folder / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return CliRunner().invoke(main, ["--trace", str(folder / "trace.jsonl"), "--cache-blocks", "10", "--json"])


def test_times_may_be_fractions_of_a_millisecond_in_any_order(tmp_path: Path) -> None:
    late = 30 * 60 * 1000
    done = measured(tmp_path, (late + 0.5, [1, 2]), (0.25, [1, 2]), (late + 9000.5, [1, 2]))
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["all_reusable"], figures["kept_back_reusable"]) == (4 / 6, 2 / 4)


def test_a_trace_within_its_first_twenty_minutes_has_no_part_kept_back(tmp_path: Path) -> None:
    done = measured(tmp_path, (0, [1, 2]), (9000, [1, 2]))
    assert done.exit_code == 0
    assert {name.split("_")[0] for name in json.loads(done.stdout)} == {"all"}
    assert done.stderr == "left out: kept_back: after the first 20 minutes no block comes twice\n"


@pytest.mark.parametrize("blocks", [[], [2]])
def test_a_trace_without_common_blocks_is_an_error(tmp_path: Path, blocks: list[int]) -> None:
    done = measured(tmp_path, (0, blocks[:0]), (9000, blocks))
    assert done.exit_code == 1
    assert "no two requests have a block in common" in done.stderr


def test_a_line_that_is_no_request_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('\n{"timestamp": "now"}\n')
    done = CliRunner().invoke(main, ["--trace", str(tmp_path / "trace.jsonl")])
    assert done.exit_code == 1
    assert "trace.jsonl: line 2: " in done.stderr
