"""What `gateway_rules` replays: traces, how replicas work, and what users expect.

Fixed before any rule was tuned:

* Replicas batch continuously: a step takes 30 ms, 1 ms more per request of the batch, and 0.1 ms per prompt token; at
  most 2,048 prompt tokens a step, at most 16 requests a replica. They take 60 s to start, and cost from being asked for
  until they have drained.
* A request is over its objectives if its first token comes too late (2 s; 15 s where prompts have ten thousand tokens)
  or its tokens take longer in the mean than 0.1 s (0.2 s).
* The gateway is not told what a replica reads in a second: it measures that.
* Rules start from the mean service time of the first 100 requests, and then measure it.
* A run begins with the replicas that the trace's mean load needs at 70 % utilisation, and the first 5 minutes are not
  counted: the traces begin in the middle of a service's life.
* Mooncake's clock is coarse: its arrivals are recorded about every 3 s, and are spread over the 3 s after it.

Options of our rule were chosen on `bursts` and on Azure's conversations; the other traces judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestReplayError, RequestSettings, StartTime, StepTime
from simulation.requests.trace import RequestTrace, bursty, generate, read, spread
from simulation.traces.trace import require_all_rows

STEP = StepTime(30.0, 1.0, 0.1)
_USUAL = RequestSettings(
    concurrency=16,
    start=StartTime(60.0),
    queue_target_s=1.5,
    slo_s=2.0,
    tpot_s=0.1,
    warmup_s=300.0,
)
_LONG = replace(_USUAL, queue_target_s=10.0, slo_s=15.0, tpot_s=0.2)
_UTILIZATION = 0.7
_MOONCAKE_CLOCK_S = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """A trace with its objectives. `judges`: nothing was chosen on it.

    `files` are the names that its file may have, ours and the publisher's; "" if the trace is made here.
    """

    name: str
    load: Callable[[Path], RequestTrace]
    files: tuple[str, ...]
    settings: RequestSettings
    judges: bool

    def path(self, traces: Path) -> Path | None:
        """Its file in a directory, None if it is not there."""
        return next((path for name in self.files if (path := traces / name).exists()), None)

    def replay(self, path: Path) -> RequestReplay:
        """What is replayed.

        Raises `TraceError` if the file has a row that cannot be used, `RequestReplayError` if it ends in the warm-up.
        """
        trace = self.load(path)
        require_all_rows(path, trace.rejected)
        found = RequestReplay.of(trace, STEP, self.settings)
        if found.arrival_s[-1] < self.settings.warmup_s:
            raise RequestReplayError(
                f"{path}: the last request arrives {found.arrival_s[-1]:g} s after the first, "
                f"before the {self.settings.warmup_s:g} s of warm-up end"
            )
        load = sum(found.service_s) / found.arrival_s[-1] / self.settings.concurrency
        initial = max(1, math.ceil(load / _UTILIZATION))
        return replace(found, settings=replace(self.settings, initial=initial))


def _spread(path: Path) -> RequestTrace:
    return spread(read(path), _MOONCAKE_CLOCK_S)


def _bursts(_path: Path) -> RequestTrace:
    return generate(bursty(2.0, 4.0, 120.0, 300.0, 102), 8.1, 5400.0, seed=102)


CASES = {
    case.name: case
    for case in (
        Case("bursts", _bursts, ("",), _USUAL, judges=False),
        Case(
            "azure-conversation",
            read,
            ("azure_llm_2023_conv.csv", "AzureLLMInferenceTrace_conv.csv"),
            _USUAL,
            judges=False,
        ),
        Case("azure-code", read, ("azure_llm_2023_code.csv", "AzureLLMInferenceTrace_code.csv"), _USUAL, judges=True),
        Case(
            "mooncake-conversation",
            _spread,
            ("mooncake_conversation.jsonl", "conversation_trace.jsonl"),
            _LONG,
            judges=True,
        ),
        Case("mooncake-toolagent", _spread, ("mooncake_toolagent.jsonl", "toolagent_trace.jsonl"), _LONG, judges=True),
    )
}
