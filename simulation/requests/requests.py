"""Requests of a trace, and how long a replica works on one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inference_gateway.errors import GatewayError
from simulation.traces.trace import Rejected

_LONGEST_S = 86_400.0


class RequestReplayError(GatewayError):
    """A simulation cannot be done as asked."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace. `service_s` is None where the trace has tokens instead of a service time."""

    arrival_s: float
    input_tokens: int = 0
    output_tokens: int = 0
    service_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests in order of arrival, the first at 0, and the rows that could not be read."""

    requests: tuple[Request, ...]
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Seconds a replica works on a request: constant_s + input x prefill + output x decode (per token).

    It does not depend on how many requests the replica serves at once: give the time per token at full concurrency.
    """

    constant_s: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    @classmethod
    def parse(cls, text: str) -> ServiceTime:
        """`SECONDS` or `PREFILL:DECODE` in ms per token. Raises `RequestReplayError`."""
        parts = text.split(":")
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2) or not all(0 <= n < math.inf for n in numbers) or not any(numbers):
            raise RequestReplayError(
                f"service time {text!r}: accepted are seconds such as 0.25, or ms per input and output token such as "
                "0.1:25"
            )
        return cls(constant_s=numbers[0]) if len(numbers) == 1 else cls(0.0, numbers[0], numbers[1])

    def seconds(self, request: Request) -> float:
        """How long a replica works on this request; what the trace says of it comes first."""
        if request.service_s is not None:
            return request.service_s
        tokens_ms = request.input_tokens * self.prefill_ms + request.output_tokens * self.decode_ms
        return self.constant_s + tokens_ms / 1000


def service_times(requests: Sequence[Request], model: ServiceTime | None) -> list[float]:
    """Seconds of work for each request.

    Raises `RequestReplayError` where the model gives none or more than a day, or where there is no model and a request
    has no service time of its own.
    """
    if model is None and any(request.service_s is None for request in requests):
        raise RequestReplayError("the trace has no service times: a service-time model is needed")
    times = [(model or ServiceTime()).seconds(request) for request in requests]
    for request, seconds in zip(requests, times, strict=True):
        if not 0 < seconds <= _LONGEST_S:
            raise RequestReplayError(
                f"service time of the request at {request.arrival_s:.3f} s ({request.input_tokens} input, "
                f"{request.output_tokens} output tokens): {seconds:g} s, accepted are times up to a day"
            )
    return times
