"""Reads the metrics of replicas' servers: requests that run and wait inside, and how full the KV caches are."""

from __future__ import annotations

import http.client
import math
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor

from prometheus_client.parser import text_string_to_metric_families

from inference_gateway.control.background_tasks import BackgroundTasks, TaskResult
from inference_gateway.control.observations import TIMEOUT_S, Question, answer_of
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.state import EventLog
from inference_gateway.errors import MetricsError
from inference_gateway.model import ReplicaLoad
from inference_gateway.sections import MetricNames, ServiceSection

METRICS_S = 2.0
"""Time between two readings of a replica's metrics."""
METRICS_RETRY_S = 30.0
"""Time after a failed reading."""
FORGOTTEN_S = 10.0
"""A reading is used for this long."""
LARGEST_METRICS = 8 << 20
_PART = 1 << 16


class ReplicaMetrics:
    """Reads the metrics of the serving replicas of services that are configured so.

    They are read in the executor's threads and through the relay, as for readiness, so no other host or user sees them.
    If a replica's metrics cannot be read, only the data plane's counters are used; the event log and `status` say why.

    Attributes:
        loads: the known loads, by replica.
        faults: why the metrics cannot be read, by replica.

    """

    def __init__(
        self, services: Mapping[str, ServiceSection], executor: Executor, context: ssl.SSLContext, events: EventLog
    ) -> None:
        self._sections = {name: found.metrics for name, found in services.items() if found.metrics is not None}
        self._questions: BackgroundTasks[Question, ReplicaLoad] = BackgroundTasks(executor)
        self._context = context
        self._events = events
        self._due_s: dict[str, float] = {}
        self._read_s: dict[str, float] = {}
        self.loads: dict[str, ReplicaLoad] = {}
        self.faults: dict[str, str] = {}

    def update(self, replicas: Iterable[Replica], now_s: float) -> None:
        """Collect finished readings, and begin those that are due."""
        serving = {
            replica.name: replica
            for replica in replicas
            if replica.phase is Phase.SERVING and replica.service in self._sections
        }
        for outcome in self._questions.outcomes():
            if replica := serving.get(outcome.key.name):
                self._take(replica, outcome, now_s)
        for known in (self._due_s, self._read_s, self.faults):
            for gone in known.keys() - serving.keys():
                known.pop(gone)
        self.loads = {
            name: load for name, load in self.loads.items() if now_s - self._read_s.get(name, -math.inf) < FORGOTTEN_S
        }
        for name, replica in serving.items():
            section = self._sections[replica.service]
            question = Question(name, replica.restarts, replica.host, replica.port, section.path)
            if now_s >= self._due_s.get(name, 0.0) and self._questions.start(
                question, load_of, question, self._context, section.names()
            ):
                self._due_s[name] = now_s + METRICS_S

    def _take(self, replica: Replica, outcome: TaskResult[Question, ReplicaLoad], now_s: float) -> None:
        name = replica.name
        if outcome.result is not None:
            self.loads[name], self._read_s[name] = outcome.result, now_s
            if self.faults.pop(name, None):
                self._events.note("metrics are read again", replica.service, replica=name)
            return
        self._due_s[name] = now_s + METRICS_RETRY_S
        if name not in self.faults:
            self._events.note("metrics cannot be read", replica.service, replica=name, reason=str(outcome.error))
        self.faults[name] = str(outcome.error)


def load_of(question: Question, context: ssl.SSLContext, names: MetricNames) -> ReplicaLoad:
    """Read the load of a replica from its metrics. Raises `MetricsError`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    text = b""
    try:
        with answer_of(question, context) as answer:
            if answer.status != http.client.OK:
                raise MetricsError(f"{question.path} answers with status {answer.status}")
            while part := answer.read1(_PART):
                text += part
                if len(text) > LARGEST_METRICS or time.monotonic() > deadline_s:
                    limit = f"{LARGEST_METRICS >> 20} MiB or {TIMEOUT_S:g} s"
                    raise MetricsError(f"{question.path} gives more than {limit}")
    except (OSError, http.client.HTTPException) as error:
        raise MetricsError(f"{question.path}: {error or type(error).__name__}") from error
    return parsed(text.decode(errors="replace"), names)


def parsed(text: str, names: MetricNames) -> ReplicaLoad:
    """The load in Prometheus text. Raises `MetricsError` if a gauge of requests is missing or invalid.

    Requests are summed over the engines and models of a server. Its engines have caches of equal size, so the mean of
    their usage is the fraction in use. An invalid or missing usage counts as unknown and is no error.
    """
    wanted = names.running + names.waiting + names.kv_cache
    # Parsing hundreds of other lines, mostly histogram buckets, would take too long for every replica.
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    found: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.value)
    except (ValueError, IndexError, KeyError) as error:
        raise MetricsError(f"no metrics in Prometheus' format: {error}") from error
    usage = next((found[name] for name in names.kv_cache if name in found), None)
    mean = None if usage is None else sum(usage) / len(usage)
    known = mean is not None and 0 <= mean <= 1
    return ReplicaLoad(_requests(found, names.running), _requests(found, names.waiting), mean if known else None)


def _requests(found: Mapping[str, Sequence[float]], names: Sequence[str]) -> int:
    values = next((found[name] for name in names if name in found), None)
    if values is None:
        raise MetricsError(f"no gauge {' or '.join(names)}")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise MetricsError(f"{names[0]} is {', '.join(map(str, values))}, expected numbers of requests")
    return round(sum(values))
