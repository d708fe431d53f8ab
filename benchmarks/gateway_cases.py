"""What `gateway_rules` replays: traces, a service-time model, and what is varied to see whether a result is robust.

Chosen before any rule was tuned, from what such services look like:

* A replica serves 8 requests at once and takes 0.1 ms per input and 25 ms per output token at that concurrency.
* A request is within its SLO if a replica takes it within 2 s. Waiting is what scaling can change; the service time is
  the same under every rule.
* In the gateway's queue those in time go before late ones (`inference_gateway.queueing`, target 2 s). Dilu and Knative
  have none of this, so their rules run with first in, first out, and again with the gateway's queue.
* Replicas take 60 s to start. They cost from being asked for until they have drained.
* A run begins with the replicas that the trace's mean load needs at 70 % utilisation, and the first 5 minutes are not
  counted: the traces begin in the middle of a service's life. The cases `cold` begin with one replica and count all.
* Mooncake's clock is coarse: its arrivals are recorded about every 3 s. `mooncake` spreads each batch over the 3 s
  after it; `mooncake-batches` takes the file as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestSettings, ServiceTime, StartTime
from simulation.requests.trace import RequestTrace, bursty, diurnal, generate, read, spread

SLOS_S = (0.5, 2.0, 5.0, 10.0)
SLO_S = 2.0
_MODEL = ServiceTime(prefill_ms=0.1, decode_ms=25.0)
_USUAL = RequestSettings(concurrency=8, start=StartTime(60.0), queue_target_s=SLO_S, slo_s=SLO_S, warmup_s=300.0)
_UTILIZATION = 0.7
_MOONCAKE_CLOCK_S = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """One trace under one setting. `is_main` cases are those of the bar, the others show how far it carries."""

    name: str
    trace: str
    replay: RequestReplay
    is_main: bool


def cases(traces: Path) -> list[Case]:
    """All cases. Raises `TraceError` where a file is missing or wrong."""
    azure = read(traces / "azure_llm_2023_conv.csv")
    batches = read(traces / "mooncake_conversation.jsonl")
    mooncake = spread(batches, _MOONCAKE_CLOCK_S)
    recorded = {"azure": azure, "mooncake": mooncake}
    found = [_case("usual", name, trace, _USUAL) for name, trace in recorded.items()]
    found.append(_case("usual", "mooncake-batches", batches, _USUAL))
    main = [replace(case, is_main=True) for case in found]
    varied = {
        "concurrency-4": replace(_USUAL, concurrency=4),
        "concurrency-16": replace(_USUAL, concurrency=16),
        "start-30": replace(_USUAL, start=StartTime(30.0)),
        "start-120": replace(_USUAL, start=StartTime(120.0)),
        "start-lognormal": replace(_USUAL, start=StartTime(60.0, 0.5)),
        "cold": replace(_USUAL, warmup_s=0.0, initial=1),
    }
    others = [_case(what, name, trace, how) for what, how in varied.items() for name, trace in recorded.items()]
    others += [
        _case(f"half-{half + 1}", name, _half(trace, half), _USUAL)
        for half in range(2)
        for name, trace in recorded.items()
    ]
    others += [_case("synthetic", name, trace, _USUAL) for name, trace in _synthetic().items()]
    return [*main, *others]


def _case(name: str, trace_name: str, trace: RequestTrace, settings: RequestSettings) -> Case:
    replay = RequestReplay.of(trace, _MODEL, settings)
    if settings.initial is None:
        work = sum(replay.service_s) / replay.arrival_s[-1]
        initial = max(1, math.ceil(work / settings.concurrency / _UTILIZATION))
        replay = replace(replay, settings=replace(settings, initial=initial))
    return Case(name, trace_name, replay, is_main=False)


def _half(trace: RequestTrace, half: int) -> RequestTrace:
    middle_s = trace.requests[-1].arrival_s / 2
    kept = [request for request in trace.requests if (request.arrival_s >= middle_s) == bool(half)]
    first_s = kept[0].arrival_s
    return RequestTrace(tuple(replace(request, arrival_s=request.arrival_s - first_s) for request in kept))


def _synthetic() -> Mapping[str, RequestTrace]:
    """Seeds that no rule was tuned with."""
    return {
        "diurnal": generate(diurnal(6.0, 0.6, 3600.0), 9.7, 7200.0, seed=101),
        "bursty": generate(bursty(3.0, 2.5, 240.0, 420.0, 102), 7.6, 7200.0, seed=102),
        "bursty-quick": generate(bursty(5.0, 2.0, 90.0, 300.0, 103), 10.1, 7200.0, seed=103),
        "steady": generate(lambda _at_s: 6.0, 6.0, 7200.0, seed=104),
    }
