"""How few requests any order that leaves no place free could make late, if it does not know how long answers will be.

Let service times be exchangeable: who is served next says nothing about how long that takes. Then the moments at which
a place becomes free have the same distribution under every order that leaves no place free while somebody waits, and an
order only decides who gets them. All requests may wait equally long, so most get theirs in time if each goes to the
oldest that still is in time, and to a late one only if there is none. `InTimeFirst` is that order; in the mean over
shuffled service times it is a bound for such orders with the same replicas. The gateway's own order does better where
requests come in batches, because it keeps places free for the next one; see `inference_gateway.queueing`.

`python -m benchmarks.gateway_order --traces DIR` prints it for `dilu`, whose rule looks at arrivals alone: the order
does not change its replicas. Other rules look at the queue, too, so for them it is what rule and order reach together.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev

import click

from benchmarks.gateway_cases import Case, cases
from inference_gateway.model import ScaleRule
from inference_gateway.queueing import Fleet
from inference_gateway.scaling.rules import build
from simulation.requests.engine import simulate
from simulation.requests.replay import RequestMetrics, RequestReplay, measure


@dataclass(slots=True)
class InTimeFirst:
    """Waiting requests: the oldest of those in time first; those that have waited longer than `target_s` last."""

    arrival_s: Sequence[float]
    target_s: float
    held: int = 0
    _in_time: deque[int] = field(default_factory=deque)
    _late: deque[int] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    def add(self, request: int, now_s: float, fleet: Fleet) -> None:  # noqa: ARG002  of no importance here
        """Put a request in that has just come."""
        self._in_time.append(request)

    def release_due(self, now_s: float, fleet: Fleet) -> None:
        """Nobody is held."""

    def take(self, now_s: float) -> int | None:
        """Take the request whose turn it is."""
        while self._in_time and now_s - self.arrival_s[self._in_time[0]] > self.target_s:
            self._late.append(self._in_time.popleft())
        line = self._in_time or self._late
        return line.popleft() if line else None

    @property
    def oldest(self) -> int:
        """The request that has waited longest: late ones are older than those in time."""
        return min(line[0] for line in (self._late, self._in_time) if line)

    def drop_oldest(self) -> None:
        """Take `oldest` out of its turn."""
        (self._late or self._in_time).popleft()


def in_time_first(replay: RequestReplay, rule: ScaleRule, seed: int | None = None) -> RequestMetrics:
    """The figures of a rule and the best order. `seed`: service times are shuffled among the requests."""
    service_s = list(replay.service_s)
    if seed is not None:
        random.Random(seed).shuffle(service_s)  # noqa: S311  no secret
    settings = replay.settings
    queue = InTimeFirst(replay.arrival_s, settings.slo_s)
    return measure(simulate(replay.arrival_s, service_s, rule, settings, queue=queue), settings)


def _figures(case: Case, rule: str, utilization: float, shuffles: int) -> dict[str, object]:
    options = {"utilization": utilization}
    fifo = replace(case.replay, settings=replace(case.replay.settings, queue_target_s=0.0)).measured(rule, options)
    best, *shuffled = (
        in_time_first(case.replay, build(rule, options, case.replay.capacity), seed)
        for seed in (None, *range(shuffles))
    )
    return {
        "trace": case.trace,
        "rule": rule,
        "utilization": utilization,
        "replica_seconds": round(best.replica_seconds),
        "fifo_replica_seconds": round(fifo.replica_seconds),
        "fifo": fifo.slo_misses,
        "in_turn": case.replay.measured(rule, options).slo_misses,
        "in_time_first": best.slo_misses,
        "shuffled_mean": round(mean(found.slo_misses for found in shuffled), 1),
        "shuffled_deviation": round(stdev(found.slo_misses for found in shuffled), 1),
    }


@click.command()
@click.option("--traces", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rule", default="dilu", show_default=True)
@click.option("--utilization", "utilizations", multiple=True, default=(0.9, 1.0), show_default=True, type=float)
@click.option("--shuffles", default=8, show_default=True, type=click.IntRange(2, 1000))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line a case.")
def main(traces: Path, rule: str, utilizations: tuple[float, ...], shuffles: int, as_json: bool) -> None:  # noqa: FBT001  click
    """Misses of a rule with first in, first out, in the gateway's order, and in the best that leaves no place free."""
    for case in cases(traces):
        for utilization in utilizations if case.is_main else ():
            figures = _figures(case, rule, utilization, shuffles)
            print(json.dumps(figures) if as_json else "  ".join(f"{name} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
