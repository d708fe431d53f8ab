"""Statistics of the last seconds and minutes: means, and the rate, trend and dispersion of arrivals."""

from __future__ import annotations

from collections import deque
from itertools import combinations, pairwise

_TREND_BLOCK_S = 30
_TREND_BLOCKS = 16
_LEAST_BLOCKS = 4
_SURE = 0.3
_MOST_DISPERSION = 20.0
_DISPERSION_BLOCKS = 120
_PRIOR_REQUESTS = 4.0
_KEPT_S = max(_TREND_BLOCK_S * _TREND_BLOCKS, 600)


class Arrivals:
    """The arrival counts of the last ten minutes."""

    def __init__(self) -> None:
        self._total = [0]  # running sums; [-1 - n] is n seconds ago

    def add(self, count: int) -> None:
        """Add the count of the next second."""
        self._total.append(self._total[-1] + count)
        if len(self._total) > 2 * _KEPT_S:
            del self._total[: -_KEPT_S - 1]

    @property
    def seconds(self) -> int:
        """Number of seconds recorded, at most about 20 minutes' worth."""
        return len(self._total) - 1

    def count(self, seconds: int, ago_s: int = 0) -> int:
        """Arrivals in the window of `seconds` that ended `ago_s` ago; shorter if less is recorded."""
        end = max(0, self.seconds - ago_s)
        return self._total[end] - self._total[max(0, end - seconds)]

    def rate(self, seconds: int) -> float:
        """Mean arrivals per second over the last `seconds`; 0 while nothing is recorded."""
        return self.count(seconds) / max(1, min(seconds, self.seconds))

    def rise(self) -> float:
        """How fast the rate rises, in requests/s per second; 0 unless a rise is fairly certain.

        Taken from the slopes between all pairs of 30-second means of the last 8 minutes (Theil-Sen estimator, robust
        against bursts): not their median but the value that 70 % exceed, so that noise is not mistaken for a trend.
        """
        blocks = min(_TREND_BLOCKS, self.seconds // _TREND_BLOCK_S)
        if blocks < _LEAST_BLOCKS:
            return 0.0
        means = [self.count(_TREND_BLOCK_S, ago * _TREND_BLOCK_S) / _TREND_BLOCK_S for ago in range(blocks)]
        slopes = sorted(
            (means[newer] - means[older]) / ((older - newer) * _TREND_BLOCK_S)
            for newer, older in combinations(range(blocks), 2)
        )
        return max(0.0, slopes[int(_SURE * len(slopes))])

    def dispersion(self, block_s: int) -> float:
        """Ratio of variance to mean of the arrivals in blocks of this length: 1 for a Poisson process, more for bursts.

        The variance is half the mean squared difference of neighbouring blocks (von Neumann, Annals of Mathematical
        Statistics 12(4), 1941), which a trend does not inflate. The result is between 1 and 20.
        """
        blocks = min(_DISPERSION_BLOCKS, self.seconds // block_s)
        if blocks < _LEAST_BLOCKS:
            return 1.0
        counts = [self.count(block_s, ago * block_s) for ago in range(blocks)]
        squares = sum((a - b) ** 2 for a, b in pairwise(counts)) / 2
        # As if a few requests of a Poisson process had been seen before: an idle service has no data of its own.
        ratio = (squares + _PRIOR_REQUESTS) / (sum(counts[1:]) + _PRIOR_REQUESTS)
        return min(_MOST_DISPERSION, max(1.0, ratio))


class RecentMean:
    """The mean of the last `seconds` values, or of as many as there are. Summed each time, so it does not drift."""

    def __init__(self, seconds: int) -> None:
        self._values: deque[float] = deque(maxlen=seconds)

    def add(self, value: float) -> None:
        """Add the value of the next second."""
        self._values.append(value)

    @property
    def value(self) -> float:
        """The mean; 0 while there is no value."""
        return sum(self._values) / len(self._values) if self._values else 0.0

    @property
    def full(self) -> bool:
        """Whether the window is full."""
        return len(self._values) == self._values.maxlen


class RecentMost:
    """The largest of the last `seconds` values."""

    def __init__(self, seconds: int) -> None:
        self._values: deque[int] = deque(maxlen=max(1, seconds))

    def add(self, value: int) -> int:
        """Add the value of the next second and return the largest in the window."""
        self._values.append(value)
        return max(self._values)
