"""How much of what could be reused is found in a replica's cache, and what that costs in waiting: affinity on a trace.

The Mooncake conversation trace names the blocks of 512 tokens of each request (`hash_ids`). Each of eight replicas
keeps the blocks it has used last, computes the rest of a prompt at `--prefill-tokens-per-s`, one request after the
other, and then a token every `--token-s`. Two rules choose the replica: the fewest requests, and what HAProxy does with
`affinity: prefix`, consistent hashing of the first blocks with bounded load. Four blocks are some 8 KiB of text.

The bound and the number of blocks were chosen on the first 20 minutes; `kept_back` are the others. A request waits
until its prompt is computed.
"""

from __future__ import annotations

import heapq
import json
import zlib
from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from inference_gateway.dataplane.configuration import AFFINITY

_BLOCK_TOKENS = 512
_FIRST_BLOCKS = 4
_CHOSEN_ON_MS = 20 * 60 * 1000


class Request(msgspec.Struct, frozen=True):
    """A line of the trace. `timestamp` is in ms, lengths are tokens."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


@dataclass(slots=True)
class Replica:
    """One replica: the blocks it has, its requests, and when its last prompt will be computed."""

    cache_blocks: int
    requests: int = 0
    busy_until_s: float = 0.0
    _blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def use(self, blocks: Sequence[int]) -> int:
        """Take a prompt; returns how many of its first blocks were there."""
        found = next((index for index, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.cache_blocks:
            self._blocks.popitem(last=False)
        return found


Rule = Callable[[Request, Sequence[Replica]], int]


def least_outstanding(request: Request, replicas: Sequence[Replica]) -> int:
    """The replica with the fewest requests; of several one that changes with the request."""
    first = int(request.timestamp) + request.input_length
    order = range(len(replicas))
    return min(order, key=lambda index: (replicas[index].requests, (index - first) % len(replicas)))


class BoundedRing:
    """HAProxy's `hash-type consistent` with `hash-balance-factor`: the next on the ring that is below the bound.

    Mirrokni, Thorup, Zadimoghaddam: Consistent hashing with bounded loads, 2018.
    """

    def __init__(self, replicas: int) -> None:
        places = 16 * AFFINITY.weight
        made = sorted((_hash(f"{index} {place}"), index) for index in range(replicas) for place in range(places))
        self._keys = [key for key, _ in made]
        self._owners = [index for _, index in made]

    def __call__(self, request: Request, replicas: Sequence[Replica]) -> int:
        """The replica for a request."""
        all_requests = 1 + sum(replica.requests for replica in replicas)
        bound = -(-all_requests * AFFINITY.factor_percent // (100 * len(replicas)))
        place = bisect(self._keys, _hash(repr(request.hash_ids[:_FIRST_BLOCKS])))
        while replicas[self._owners[place % len(self._owners)]].requests >= bound:
            place += 1
        return self._owners[place % len(self._owners)]


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a replica is."""

    prefill_tokens_per_s: float
    token_s: float


def replay(requests: Sequence[Request], replicas: Sequence[Replica], rule: Rule, speed: Speed) -> tuple[float, float]:
    """The share of all blocks, at least one, that were found in a cache; the 99th percentile of the waits in s."""
    ends: list[tuple[float, int]] = []
    waits_s: list[float] = []
    found = 0
    for request in requests:
        now_s = request.timestamp / 1000
        while ends and ends[0][0] <= now_s:
            replicas[heapq.heappop(ends)[1]].requests -= 1
        chosen = rule(request, replicas)
        replica = replicas[chosen]
        hits = replica.use(request.hash_ids)
        found += hits
        left = max(1, request.input_length - hits * _BLOCK_TOKENS)
        replica.busy_until_s = max(now_s, replica.busy_until_s) + left / speed.prefill_tokens_per_s
        replica.requests += 1
        waits_s.append(replica.busy_until_s - now_s)
        heapq.heappush(ends, (replica.busy_until_s + speed.token_s * request.output_length, chosen))
    waits_s.sort()
    return found / _blocks(requests), waits_s[int(0.99 * len(waits_s))]


def reusable(requests: Sequence[Request]) -> float:
    """The share of blocks that any request before had: what one endless cache would find; 0 without blocks."""
    seen: set[int] = set()
    found = 0
    for request in requests:
        found += sum(block in seen for block in request.hash_ids)
        seen.update(request.hash_ids)
    return found / max(1, _blocks(requests))


def _blocks(requests: Sequence[Request]) -> int:
    return sum(len(request.hash_ids) for request in requests)


def read(path: Path) -> list[Request]:
    """The requests of a trace in order of arrival. Raises `click.ClickException` for a line that is none."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found += [msgspec.json.decode(line, type=Request)] if line.strip() else []
        except msgspec.MsgspecError as error:
            raise click.ClickException(f"{path}: line {number}: {error}") from error
    return sorted(found, key=lambda request: request.timestamp)


@click.command()
@click.option(
    "--trace",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Mooncake's conversation_trace.jsonl.",
)
@click.option("--replicas", default=8, show_default=True, type=click.IntRange(1, 1000))
@click.option("--cache-blocks", default=(3000, 5000, 10_000), show_default=True, multiple=True, help="Of a replica.")
@click.option("--prefill-tokens-per-s", default=8000.0, show_default=True)
@click.option("--token-s", default=0.02, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    *,
    trace: Path,
    replicas: int,
    cache_blocks: tuple[int, ...],
    prefill_tokens_per_s: float,
    token_s: float,
    as_json: bool,
) -> None:
    """Compare affinity with the fewest outstanding requests."""
    everything = read(trace)
    kept_back = [request for request in everything if request.timestamp >= _CHOSEN_ON_MS]
    speed = Speed(prefill_tokens_per_s, token_s)
    figures: dict[str, float] = {}
    if not reusable(everything):
        raise click.ClickException(f"{trace}: no two requests have a block in common (hash_ids)")
    for part, requests in (("all", everything), ("kept_back", kept_back)):
        most = reusable(requests)
        if not most:
            click.echo(f"left out: {part}: after the first 20 minutes no block comes twice", err=True)
            continue
        figures[f"{part}_reusable"] = most
        for blocks in cache_blocks:
            rules: dict[str, Rule] = {"least": least_outstanding, "prefix": BoundedRing(replicas)}
            hits, waits_s = zip(
                *(replay(requests, [Replica(blocks) for _ in range(replicas)], rule, speed) for rule in rules.values()),
                strict=True,
            )
            for name, share, wait_s in zip(rules, hits, waits_s, strict=True):
                figures[f"{part}_{blocks}_{name}_hits_of_reusable"] = share / most
                figures[f"{part}_{blocks}_{name}_wait_p99_s"] = wait_s
            figures[f"{part}_{blocks}_wait_p99_ratio"] = waits_s[1] / waits_s[0]
    if as_json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:<44} {value:.4f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
