"""Feeds a rule one second after the other."""

from collections.abc import Iterable
from dataclasses import dataclass

from inference_gateway.model import Decision, Observation, ScaleRule


@dataclass
class Service:
    """A service that does at once what its rule says: replicas are starting for `start_s`, then ready."""

    rule: ScaleRule
    ready: int = 1
    start_s: int = 0
    now_s: int = 0
    starting: tuple[int, ...] = ()

    @property
    def replicas(self) -> int:
        return self.ready + len(self.starting)

    def second(self, arrivals: int, in_flight: int = 0, queued: int = 0) -> Decision:
        self.now_s += 1
        self.ready += sum(ready_s <= self.now_s for ready_s in self.starting)
        self.starting = tuple(ready_s for ready_s in self.starting if ready_s > self.now_s)
        seen = Observation(self.now_s, arrivals, in_flight, queued, self.ready, len(self.starting))
        decision = self.rule.decide(seen)
        for _ in range(decision.replicas - self.replicas):
            if self.start_s:
                self.starting += (self.now_s + self.start_s,)
            else:
                self.ready += 1
        while self.replicas > max(0, decision.replicas):
            if self.starting:
                self.starting = self.starting[:-1]
            else:
                self.ready -= 1
        return decision

    def feed(self, arrivals: Iterable[int], in_flight: int = 0, queued: int = 0) -> list[int]:
        """The number of replicas after each second."""
        counts = []
        for count in arrivals:
            self.second(count, in_flight, queued)
            counts.append(self.replicas)
        return counts
