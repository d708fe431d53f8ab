"""The share of a GPU that a service or a training should ask for, found by few trials (after Dilu, ASPLOS 2025).

A trial runs a program with a share of the GPU's time, or of its SMs, and with a batch size, and measures it. Shares are
percent, in steps. More share is taken to be never slower: so what a bound needs is found by bisection.

* An inference service: the (batch, share) that serves most per share among those that keep the latency bound. Dilu's
  hybrid growth search: the least share for batch 1, then the batch doubles and the share grows from where it was, until
  the bound cannot be kept or a doubling gains nothing. That share is the request; the limit is the least share at which
  the same batch is about as fast as on the whole GPU: more would be of no use.
* A training: the request is the least share that keeps most of its throughput, the limit the least that keeps all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kernel_intercept.profile.store import ProfileError

WHOLE = 100
UNHARMED = 0.98
"""A share at which a program has so much of its full throughput does not slow it (Dilu's bound)."""

_LOSS = 0.97
"""A larger batch is left when it serves less than this much of the best per share."""


@dataclass(frozen=True, slots=True)
class ShareTrial:
    """What was measured: seconds of one batch, and items per second."""

    batch: int
    share_percent: int
    latency_s: float
    throughput: float

    @property
    def per_share(self) -> float:
        """Items per second and percent of the GPU."""
        return self.throughput / self.share_percent


@dataclass(frozen=True, slots=True)
class FoundRequest:
    """The batch to serve with (a training keeps its own, 1), and request and limit in percent of a GPU."""

    batch: int
    request_percent: int
    limit_percent: int


@dataclass(slots=True)
class RequestSearch:
    """A search by `run(batch, share_percent)`; `trials` are all that were run, in order, none twice.

    Shares are multiples of `step_percent`.
    """

    run: Callable[[int, int], ShareTrial]
    step_percent: int = 5
    trials: dict[tuple[int, int], ShareTrial] = field(default_factory=dict)

    def inference(self, qos_s: float, largest_batch: int) -> FoundRequest:
        """What a service should ask for. Raises `ProfileError` if not even the whole GPU keeps the bound."""
        best = self._grown(1, self.step_percent, qos_s, 0.0)
        if best is None:
            found_s = self._trial(1, WHOLE).latency_s
            raise ProfileError(f"one item takes {found_s:.4g} s on the whole GPU, more than the bound of {qos_s:g} s")
        share, batch = best.share_percent, 2
        while batch <= largest_batch:
            grown = self._grown(batch, share, qos_s, _LOSS * best.per_share)
            if grown is None or grown.per_share < _LOSS * best.per_share:
                break
            best = max(best, grown, key=lambda trial: trial.per_share)
            share, batch = grown.share_percent, 2 * batch
        return FoundRequest(best.batch, best.share_percent, self._unharmed(best.batch, best.share_percent))

    def training(self, kept: float) -> FoundRequest:
        """What a training should ask for, which is to keep this part of its throughput. Raises `ProfileError`."""
        full = self._trial(1, WHOLE).throughput
        if not full > 0:
            raise ProfileError(f"the training does {full:g} items per second on the whole GPU")
        request = self._least(1, self.step_percent, lambda trial: trial.throughput >= kept * full) or WHOLE
        return FoundRequest(1, request, self._unharmed(1, request))

    def _unharmed(self, batch: int, from_percent: int) -> int:
        full = self._trial(batch, WHOLE).throughput
        return self._least(batch, from_percent, lambda trial: trial.throughput >= UNHARMED * full) or WHOLE

    def _grown(self, batch: int, from_percent: int, qos_s: float, worth: float) -> ShareTrial | None:
        """The batch at the least share from here on that keeps the bound; None where that is worth less, or none does.

        The search begins where `_expected_percent` says. Time is at best inverse to the share: so what a trial took
        tells how much more is needed at least, and no larger share can serve more per percent.
        """
        share = max(from_percent, self._expected_percent(batch, qos_s))
        failed, step = from_percent - self.step_percent, self.step_percent
        while (trial := self._trial(batch, share)).latency_s > qos_s:
            if share == WHOLE or trial.per_share < worth:
                return None
            needed = self.step_percent * math.ceil(share * trial.latency_s / qos_s / self.step_percent)
            share, failed, step = min(WHOLE, max(share + step, needed)), share, 2 * step
        below = share - self.step_percent
        if below > failed and self._trial(batch, below).latency_s <= qos_s:
            return self._trial(
                batch, self._least(batch, failed + self.step_percent, lambda t: t.latency_s <= qos_s) or share
            )
        return self._trial(batch, share)

    def _expected_percent(self, batch: int, qos_s: float) -> int:
        """The share that keeps the bound if time is a constant and a part per item and share; 0 where nothing tells."""
        latest = {trial.batch / trial.share_percent: trial.latency_s for trial in self.trials.values()}
        if len(latest) < 2:
            return 0
        (x, y), (x2, y2) = list(latest.items())[-2:]
        each_s = (y2 - y) / (x2 - x)
        left_s = qos_s - (y - each_s * x)
        if each_s <= 0 or left_s <= 0:
            return 0
        return min(WHOLE, self.step_percent * math.ceil(each_s * batch / left_s / self.step_percent - 1e-9))

    def _least(self, batch: int, from_percent: int, suits: Callable[[ShareTrial], bool]) -> int | None:
        """The least share from `from_percent` on that suits; None if not even the whole GPU does."""
        tried = (one for (size, share), one in self.trials.items() if size == batch and share >= from_percent)
        known = [trial.share_percent for trial in tried if suits(trial)]
        low, high = -(-from_percent // self.step_percent), min([WHOLE, *known]) // self.step_percent
        if not known and not suits(self._trial(batch, WHOLE)):
            return None
        while low < high:
            middle = (low + high) // 2
            if suits(self._trial(batch, middle * self.step_percent)):
                high = middle
            else:
                low = middle + 1
        return high * self.step_percent

    def _trial(self, batch: int, share_percent: int) -> ShareTrial:
        key = batch, share_percent
        if key not in self.trials:
            found = self.run(batch, share_percent)
            if not (math.isfinite(found.latency_s) and math.isfinite(found.throughput)):
                raise ProfileError(f"batch {batch} at {share_percent} %: measured {found}, finite numbers are needed")
            self.trials[key] = found
        return self.trials[key]
