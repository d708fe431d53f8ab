"""Who goes first among the requests of a service that wait for a replica.

First in, first out makes everybody late once the queue is longer than the target: each request waits behind those that
are late already. Here a request that would find the target passed goes into a second class, which is served when the
first one is empty; both classes are first in, first out. So a rate a tenth above what the replicas can take makes a
tenth of the requests late, not all. Nothing is refused for it.

    late if    waiting in the first class  >=  ready replicas x IN_TIME_SHARE x target x requests/s of a replica

The right side is how many requests the busy replicas take in the target's time (Little's law). What may wait for how
long is known when a request comes, because all have one target; HAProxy then needs two priorities, and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_TIME_SHARE = 0.7
"""Of what the replicas take on average in the target's time; the rest is for requests that take longer than others."""


def in_time_per_replica(target_s: float, requests_per_s: float) -> float:
    """Requests per ready replica that may wait in the first class; 0 for first in, first out."""
    return IN_TIME_SHARE * target_s * requests_per_s


def thousandths(per_replica: float) -> int:
    """The same in whole thousandths, as HAProxy calculates; at least one where it is not 0."""
    return max(1, round(1000 * per_replica)) if per_replica else 0


@dataclass(slots=True)
class Classes:
    """Sorts requests as they come, as the data plane does: from the length of the whole queue alone.

    The second class is served only when the first one is empty. So if the queue is not longer than `late`, the number
    of requests that were put into the second class and not seen to leave, there is nobody in the first. Those that
    reach their deadline while the first is not empty are told by `gave_up`: otherwise `late` would stay too high for as
    long as an overload lasts, and the first class would grow by each of them.

    An empty queue is not looked at: in HAProxy that is nearly every request, and a look costs. After it `late` may be
    one too high until the first class is empty again, and the first class then holds one request more.
    """

    thousandths_per_replica: int
    late: int = 0

    def is_late(self, queued: int, ready: int) -> bool:
        """Whether the next request goes into the second class, behind `queued` requests for `ready` replicas."""
        if not self.thousandths_per_replica or not queued or not ready:
            return False
        self.late = min(self.late, queued)
        late = queued - self.late >= ready * self.thousandths_per_replica // 1000
        self.late += late
        return late

    def gave_up(self) -> None:
        """A request of the second class has reached its deadline."""
        self.late = max(0, self.late - 1)
