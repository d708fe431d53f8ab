"""What the log of a virtual GPU says about a run of `benchmarks.kernel_share`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.kernel_share_run import Ended, Kernel


@dataclass(frozen=True, slots=True)
class AboveCaps:
    """Shares of the time in which what ran exceeded the caps.

    `let_in`: with a best-effort kernel as the last one launched of those that ran, so that it should not have been let
    in. What is in `all` beyond that are high-priority launches, which never wait, on top of what ran already. Launches
    are in the order in which the driver was called: what happens in there no gate can know.
    """

    all: float
    let_in: float
    best_effort: float  # by best-effort kernels alone


def above_caps(log: Sequence[Ended], kernels: Sequence[Kernel], high_pid: int, cap_permille: int) -> AboveCaps:
    """Compare what ran at each moment with the caps; `high_pid` is the one high-priority client."""
    shares = {kernel.name: (kernel.compute_permille, kernel.bandwidth_permille) for kernel in kernels}
    ends = sorted(log, key=lambda ended: ended.ended_ns)
    starts = sorted(log, key=lambda ended: ended.started_ns)
    moments = sorted({kernel.started_ns for kernel in log} | {kernel.ended_ns for kernel in log})
    running: dict[int, Ended] = {}
    above_ns = {"all": 0, "let_in": 0, "best_effort": 0}
    start = end = 0
    for now_ns, next_ns in pairwise(moments):
        while start < len(starts) and starts[start].started_ns <= now_ns:
            running[id(starts[start])] = starts[start]
            start += 1
        while end < len(ends) and ends[end].ended_ns <= now_ns:
            running.pop(id(ends[end]), None)
            end += 1
        low = [kernel for kernel in running.values() if kernel.pid != high_pid]
        above = _peak(running.values(), shares) > cap_permille
        last = max(running.values(), key=lambda kernel: kernel.called_ns, default=None)
        above_ns["all"] += (next_ns - now_ns) * above
        above_ns["let_in"] += (next_ns - now_ns) * (above and last is not None and last.pid != high_pid)
        above_ns["best_effort"] += (next_ns - now_ns) * (_peak(low, shares) > cap_permille)
    span_ns = moments[-1] - moments[0]
    return AboveCaps(**{name: ns / span_ns for name, ns in above_ns.items()})


def _peak(kernels: Iterable[Ended], shares: Mapping[str, tuple[int, int]]) -> int:
    loads = [shares[kernel.kernel] for kernel in kernels]
    return max((sum(load) for load in zip(*loads, strict=True)), default=0)


def request_ms(log: Sequence[Ended], pid: int, kernels_per_request: int) -> list[float]:
    """For each request of a client: from its first launch to the end of its last kernel."""
    own = [ended for ended in log if ended.pid == pid]
    whole = len(own) // kernels_per_request * kernels_per_request
    return [
        (own[last].ended_ns - own[last - kernels_per_request + 1].admitted_ns) / 1e6
        for last in range(kernels_per_request - 1, whole, kernels_per_request)
    ]


def ended_within(log: Sequence[Ended], pid: int, begin_ns: int, end_ns: int) -> int:
    """How many kernels of a client ended in a span of the virtual GPU's time."""
    return sum(1 for ended in log if ended.pid == pid and begin_ns <= ended.ended_ns < end_ns)
