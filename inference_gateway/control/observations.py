"""Observes each replica, through Slurm, its job, HTTP and the data plane.

Calls that may take long run in an executor, and their outcome is collected in a later tick: a hanging slurmctld or
replica never stops the loop. A starting replica is ready once it answers over HTTP, and not before.
"""

from __future__ import annotations

import http.client
import logging
import math
import ssl
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, ParamSpec, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from explsched import log
from explsched.errors import SlurmError
from inference_gateway.control.replica import Phase, Replica, ReplicaObservation
from inference_gateway.control.start_times import WaitingLine
from inference_gateway.control.state import EventLog
from inference_gateway.errors import MetricsError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ReplicaLoad, ServerState
from inference_gateway.replicas import reports
from inference_gateway.replicas.reports import Registration
from inference_gateway.replicas.submission import prefix
from inference_gateway.services import MetricNames, ServiceSection
from slurm_plugin.client.changes import CancelJob, ChangeFailure
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import QueuedJob, SlurmJob

_LOG = logging.getLogger("explsched.gateway")
_MUCH_SOONER_S = 60.0
"""A replica uses another QOS than the preferred one only if it starts this much sooner."""
_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[_Key, _Result]):
    """The outcome of a task: its result, or the exception that it raised."""

    key: _Key
    result: _Result | None
    error: BaseException | None


class BackgroundTasks(Generic[_Key, _Result]):
    """Tasks in an executor, by key; at most one per key at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._under_way: dict[_Key, Future[_Result]] = {}

    def start(
        self, key: _Key, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> bool:
        """Begin a task; False if one with this key is still running."""
        if key in self._under_way:
            return False
        self._under_way[key] = self._executor.submit(work, *args, **kwargs)
        return True

    def outcomes(self) -> list[TaskResult[_Key, _Result]]:
        """The tasks that have ended since the last call."""
        ended = [(key, future) for key, future in self._under_way.items() if future.done()]
        found: list[TaskResult[_Key, _Result]] = []
        for key, future in ended:
            del self._under_way[key]
            error = future.exception()
            found.append(TaskResult(key, None if error else future.result(), error))
        return found


_OVER = ("already completing or completed", "Invalid job id")
"""scancel's messages for a job that has ended by itself in the meantime."""

SOONEST_S = 1.0
"""Least time between two listings, even after `hurry`: each is a request to slurmctld."""
_QUEUE_PAUSES = 50.0
"""Listing all jobs of a large site takes long: the next listing waits this many times as long as the last one took."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The jobs of the gateway's replicas, by job name, as Slurm had them when the listing began (since the epoch).

    `queue` has the jobs of all users, None if it was not needed.
    """

    began_s: float = 0.0
    jobs: Mapping[str, SlurmJob] = field(default_factory=dict)
    queue: tuple[QueuedJob, ...] | None = None


class SlurmSync:
    """Runs commands to Slurm one after another, in an executor with one thread.

    Attributes:
        listing: the newest listing of jobs.
        line: predicts starts from Slurm's queue.
        fault: why the last listing failed; None if it succeeded.

    """

    def __init__(self, client: SlurmClient, gateway: str, poll_s: float, executor: Executor) -> None:
        self._client = client
        self._prefix = prefix(gateway)
        self._poll_s = poll_s
        self._listings: BackgroundTasks[str, Listing] = BackgroundTasks(executor)
        self._submissions: BackgroundTasks[str, int] = BackgroundTasks(executor)
        self._cancellations: BackgroundTasks[tuple[int, ...], tuple[ChangeFailure, ...]] = BackgroundTasks(executor)
        self._due_s = 0.0
        self._last_s = 0.0
        self._queue_due_s = 0.0
        self.listing = Listing()
        self.line = WaitingLine()
        self.fault: BaseException | None = None

    def list_jobs(self, began_s: float) -> Listing:
        """List the jobs synchronously. `began_s` is the current time. Raises `SlurmError`."""
        jobs = self._client.tagged_jobs(self._prefix)
        # Job ids increase: of two jobs with one name the later one counts.
        by_name = {job.name: job for job in sorted(jobs, key=lambda job: job.job_id)}
        return Listing(began_s, by_name, self._list_queue(began_s, by_name.values()))

    def _list_queue(self, now_s: float, jobs: Iterable[SlurmJob]) -> tuple[QueuedJob, ...] | None:
        """The jobs of all users, if ours wait, and rarely enough for the controller of a large site.

        Only forecasts need it: where all jobs are too many to be listed in time, our own still count.
        """
        if now_s < self._queue_due_s or not any(job.state == "PENDING" for job in jobs):
            return None
        began_s = time.monotonic()
        try:
            return self._client.queue()
        except SlurmError as error:
            log.event(_LOG, logging.WARNING, "queue not listed, starts are forecast without it", why=str(error))
            return None
        finally:
            self._queue_due_s = now_s + _QUEUE_PAUSES * (time.monotonic() - began_s)

    def advance(self, now_s: float) -> list[TaskResult[str, int]]:
        """Collect finished commands and list again if it is time; returns the finished submissions, by replica name."""
        for listing in self._listings.outcomes():
            self.fault = listing.error
            if listing.result is not None:
                self.listing = listing.result
                if self.listing.queue is not None:
                    ours = {job.job_id for job in self.listing.jobs.values()}
                    self.line.take(self.listing.began_s, self.listing.queue, ours)
        waits = self._last_s <= now_s < self._due_s  # a clock that was set back makes nobody wait for what it was
        if not waits and self._listings.start("list", self.list_jobs, now_s):
            self._last_s, self._due_s = now_s, now_s + self._poll_s
        return self._submissions.outcomes()

    def hurry(self) -> None:
        """List the jobs again soon, because something is about to change."""
        self._due_s = min(self._due_s, self._last_s + SOONEST_S)

    def submit(self, name: str, script: str, choices: Sequence[Sequence[str]]) -> None:
        """Submit the job of a replica, with one of several sets of options."""
        self._submissions.start(name, submit_soonest, self._client, script, choices)
        self.hurry()

    def cancel(self, job_ids: Sequence[int]) -> None:
        """Cancel jobs."""
        if job_ids:
            self._cancellations.start(tuple(job_ids), self._client.apply, [CancelJob(job_id) for job_id in job_ids])
            self.hurry()

    def refusals(self) -> list[str]:
        """Slurm's messages about refused cancellations since the last call."""
        found: list[str] = []
        for outcome in self._cancellations.outcomes():
            found += [str(outcome.error)] if outcome.error else [failure.message for failure in outcome.result or ()]
        return [message for message in found if not any(over in message for over in _OVER)]


def submit_soonest(client: SlurmClient, script: str, choices: Sequence[Sequence[str]]) -> int:
    """Submit a job with the first of these sets of options that starts it within a minute of the soonest.

    A set for which Slurm predicts no start is chosen only if it predicts none for any. Raises `SlurmError`.
    """
    if len(choices) == 1:
        return client.submit(script, choices[0])
    starts_s = [_start_s(client, script, options) for options in choices]
    soonest_s = min(starts_s)
    soon = (
        options for options, start_s in zip(choices, starts_s, strict=True) if start_s <= soonest_s + _MUCH_SOONER_S
    )
    return client.submit(script, next(soon))


def _start_s(client: SlurmClient, script: str, options: Sequence[str]) -> float:
    try:
        return client.expected_start_s(script, options)
    except SlurmError:
        return math.inf


class ReplicaObserver:
    """Makes the observations of all replicas. `services` have the health paths."""

    def __init__(
        self, services: Mapping[str, ServiceSection], paths: GatewayPaths, slurm_sync: SlurmSync, readiness: Readiness
    ) -> None:
        self._services = services
        self._paths = paths
        self._slurm = slurm_sync
        self._readiness = readiness

    def gather(
        self, replicas: Iterable[Replica], servers: Sequence[ServerState], *, plane_answers: bool
    ) -> Iterator[tuple[Replica, ReplicaObservation]]:
        """Each replica with its observation. `servers` lacks those of a data plane of ours that does not answer."""
        by_name = {server.name: server for server in servers}
        answered = self._readiness.answered()
        listing = self._slurm.listing
        for replica in replicas:
            server = by_name.get(replica.name)
            yield (
                replica,
                ReplicaObservation(
                    job=listing.jobs.get(replica.name),
                    listed_s=listing.began_s,
                    registration=self._registration(replica),
                    leaving=replica.phase is Phase.SERVING and reports.leaving(self._paths.replica(replica.name)),
                    answered=(replica.name, replica.restarts) in answered,
                    server_up=None if server is None else server.state != "down",
                    passed=None if server is None else server.passed,
                    in_flight=None if server is None else server.in_flight,
                    plane_answers=plane_answers,
                ),
            )

    def ask(self, replicas: Iterable[Replica]) -> None:
        """Probe the starting replicas; a later `gather` has the results."""
        for replica in replicas:
            service = self._services.get(replica.service)
            if service and replica.phase is Phase.STARTING and replica.port:
                where = (replica.host, replica.port, service.health.path)
                self._readiness.ask(Question(replica.name, replica.restarts, *where))

    def _registration(self, replica: Replica) -> Registration | None:
        """The registration by its job, while its address is unknown."""
        if replica.port or replica.phase not in (Phase.PENDING, Phase.STARTING):
            return None
        found = reports.registered(self._paths.replica(replica.name))
        if found and replica.phase is Phase.PENDING and found.restarts == replica.restarts:
            self._slurm.hurry()  # it runs already, which the last listing did not show
        return found


TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Question:
    """A GET of `path` at a replica. `restarts` tells the runs of a requeued job apart."""

    name: str
    restarts: int
    host: str
    port: int
    path: str


class Readiness:
    """Probes replicas in the executor's threads; at most one probe per replica at a time.

    `context` is the TLS context: a server without the replica's certificate gets no request.
    """

    def __init__(self, executor: Executor, context: ssl.SSLContext) -> None:
        self._questions: BackgroundTasks[Question, bool] = BackgroundTasks(executor)
        self._context = context

    def ask(self, question: Question) -> None:
        """Send the probe, unless the same one is still running."""
        self._questions.start(question, ready, question, self._context)

    def answered(self) -> frozenset[tuple[str, int]]:
        """The replicas (name, restarts) that have answered 200 since the last call."""
        return frozenset((found.key.name, found.key.restarts) for found in self._questions.outcomes() if found.result)


def ready(question: Question, context: ssl.SSLContext) -> bool:
    """Whether the replica, authenticated by its name, answers 200 within the timeout."""
    try:
        with _answer(question, context) as answer:
            return answer.status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def _answer(question: Question, context: ssl.SSLContext) -> Iterator[http.client.HTTPResponse]:
    """The answer of the replica, authenticated by its name. Raises `OSError`, `HTTPException`."""
    connection = http.client.HTTPConnection(question.host, question.port, timeout=TIMEOUT_S)
    try:
        connection.connect()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=question.name)
        connection.request("GET", question.path)
        yield connection.getresponse()
    finally:
        connection.close()


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
        with _answer(question, context) as answer:
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
