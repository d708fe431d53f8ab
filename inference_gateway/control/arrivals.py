"""From counters since the data plane's start to one-second observations."""

from __future__ import annotations

from inference_gateway.model import Traffic


class Arrivals:
    """Remembers the last counter of each service."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def since_last(self, traffic: Traffic) -> int:
        """Arrivals since the last call for this service; none at the first.

        A counter that has fallen was reset by a restart of the data plane: what it shows has arrived since.
        """
        last = self._last.get(traffic.service)
        self._last[traffic.service] = traffic.arrivals
        if last is None:
            return 0
        return traffic.arrivals - last if traffic.arrivals >= last else traffic.arrivals
