"""How long replicas work on a request, how long they take to start, and how replicas and queue behave."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference_gateway.errors import GatewayError
from inference_gateway.scaling.rules import Bounds
from simulation.requests.trace import Request

_LONGEST_S = 86_400.0


class RequestReplayError(GatewayError):
    """Requests cannot be replayed with these settings."""


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
                f"service time {text!r} (accepted: seconds such as 0.25, or ms per input and output token such as "
                "0.1:25)"
            )
        return cls(constant_s=numbers[0]) if len(numbers) == 1 else cls(0.0, numbers[0], numbers[1])

    def seconds(self, request: Request) -> float:
        """How long a replica works on this request; a service time in the trace takes precedence."""
        if request.service_s is not None:
            return request.service_s
        tokens_ms = request.input_tokens * self.prefill_ms + request.output_tokens * self.decode_ms
        return self.constant_s + tokens_ms / 1000

    def token_s(self, request: Request) -> float:
        """Mean time per token after the first one, of a request with tokens; 0 if there is no such token."""
        tokens = request.output_tokens
        return self.constant_s / tokens + self.decode_ms / 1000 if tokens > 1 else 0.0


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
                f"{request.output_tokens} output tokens): {seconds:g} s (accepted: up to a day)"
            )
    return times


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one step of a server with continuous batching takes, in ms: it gives each request of the batch a token.

        base_ms + request_ms x requests + prompt_ms x prompt tokens of this step

    Prompts are read in pieces of at most `chunk` tokens a step, first come, first served, beside the requests that
    decode (chunked prefill; Agrawal et al., Sarathi-Serve, OSDI 2024). The defaults are near those of a 70B model on a
    node of eight GPUs; measure your own.
    """

    base_ms: float = 12.0
    request_ms: float = 0.35
    prompt_ms: float = 0.05
    chunk: int = 2048

    @classmethod
    def parse(cls, text: str) -> StepTime:
        """`BASE:REQUEST:PROMPT` in ms. Raises `RequestReplayError`."""
        try:
            numbers = [float(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) != 3 or not all(0 <= n <= 60_000 for n in numbers) or not numbers[0]:
            raise RequestReplayError(
                f"step time {text!r} (accepted: ms per step, more per request of the batch, and per prompt token, such "
                "as 12:0.35:0.05)"
            )
        base_ms, request_ms, prompt_ms = numbers
        return cls(base_ms, request_ms, prompt_ms)

    def seconds(self, requests: int, prompt_tokens: float) -> float:
        """One step with this many requests that decode, and prompt tokens."""
        return (self.base_ms + self.request_ms * requests + self.prompt_ms * prompt_tokens) / 1000

    def service_s(self, request: Request, concurrency: int) -> float:
        """How long a request takes in a batch that is always full of requests like it.

        n requests at a time, each with L output and P prompt tokens, need n/X seconds, where a step with n requests is
        paid L times and a prompt once per answer: 1/X = (L x step(n) + n x P x prompt_ms) / n.
        """
        decode_s = request.output_tokens * self.seconds(concurrency, 0.0)
        return decode_s + concurrency * request.input_tokens * self.prompt_ms / 1000


_KNOWN = 100


def known_service_s(service_s: Sequence[float]) -> float:
    """What whoever sets up a service may have measured before: the mean of the first 100 requests, not of all."""
    known = service_s[:_KNOWN]
    return sum(known) / len(known)


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks of a replica: tokens to read, and steps after the first token."""

    prompt_tokens: float
    steps: float


@dataclass(frozen=True, slots=True)
class StartTime:
    """Time from requesting a replica until it serves: lognormal with this median; sigma 0 makes it constant."""

    median_s: float = 60.0
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> StartTime:
        """`SECONDS` or `MEDIAN:SIGMA`. Raises `RequestReplayError`."""
        try:
            numbers = [float(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2) or not all(
            0 <= n <= limit for n, limit in zip(numbers, (86_400, 3), strict=False)
        ):
            raise RequestReplayError(
                f"start time {text!r} (accepted: seconds up to a day, such as 60, or the median and sigma of a "
                "lognormal distribution, such as 60:0.5 with sigma up to 3)"
            )
        return cls(*numbers)

    def draw_s(self, random_: random.Random) -> float:
        """The start time of one replica."""
        return self.median_s * math.exp(random_.gauss(0.0, self.sigma)) if self.sigma else self.median_s

    @property
    def mean_s(self) -> float:
        """Expected start time."""
        return self.median_s * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """How replicas and queue behave.

    Attributes:
        concurrency: requests a replica serves at once.
        start: how long replicas take to start.
        deadline_s: a request that waited this long fails with 503.
        queue_target_s: target queueing delay; late requests are deprioritised, see `queueing` (0: first in, first out).
        prompt_tokens_per_s: what a replica reads, as whoever routes requests is told; None: measured, as the gateway
            does; 0: only requests are counted.
        slo_s: the longest time to the first token within the SLO, from arrival on (without tokens: until a replica
            takes the request).
        tpot_s: the longest mean time per token after the first one within the SLO.
        initial: replicas that are ready at time 0; None takes the least of the bounds.
        warmup_s: figures count from then on; before, the rule fills its windows.
        bounds: of the replicas.
        seed: of random start times.

    """

    concurrency: int = 8
    start: StartTime = field(default_factory=StartTime)
    deadline_s: float = 300.0
    queue_target_s: float = 2.0
    prompt_tokens_per_s: float | None = None
    slo_s: float = 2.0
    tpot_s: float = math.inf
    initial: int | None = None
    warmup_s: float = 0.0
    bounds: Bounds = field(default_factory=lambda: Bounds(1, 64, 64))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise RequestReplayError(f"concurrency {self.concurrency} (accepted: whole numbers from 1)")
        if not 0 < self.deadline_s <= 86_400:
            raise RequestReplayError(f"deadline {self.deadline_s:g} s (accepted: up to a day)")
        if not 0 <= self.queue_target_s <= 86_400:
            raise RequestReplayError(f"queue target {self.queue_target_s:g} s (accepted: up to a day)")
        if self.prompt_tokens_per_s is not None and not 0 <= self.prompt_tokens_per_s <= 1e9:
            raise RequestReplayError(f"prompt tokens {self.prompt_tokens_per_s:g}/s (accepted: 0 to 1e9)")
        if not 0 <= self.slo_s <= self.deadline_s:
            raise RequestReplayError(f"SLO {self.slo_s:g} s (accepted: 0 to the deadline, {self.deadline_s:g} s)")
        if not self.tpot_s > 0:
            raise RequestReplayError(f"time per token {self.tpot_s:g} s (accepted: more than 0)")
        if not 0 <= self.warmup_s < math.inf:
            raise RequestReplayError(f"warm-up {self.warmup_s:g} s (accepted: 0 or more)")
        if self.initial is not None and not 0 <= self.initial <= self.bounds.maximum:
            raise RequestReplayError(f"initial {self.initial} (accepted: 0 to max, {self.bounds.maximum})")

    @property
    def initial_replicas(self) -> int:
        """Replicas that are ready at time 0."""
        return self.bounds.minimum if self.initial is None else self.initial
