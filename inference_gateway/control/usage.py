"""Sums up the replicas' reports: tokens by day, key and service, kept over restarts; and prompt reading rates.

The counters in a replica's report only grow. How much of them has been counted is saved in the same file as the sums,
so that nothing is counted twice, neither after a restart of the control plane nor when a report is read again. While
the file cannot be read nothing is counted and nothing is written; if its content is invalid it is moved aside.
"""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from explsched.log import event
from inference_gateway.control import state
from inference_gateway.control.replica import Replica
from inference_gateway.dataplane.settings import ApiKey
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.queueing import Stretch, reading_rate
from inference_gateway.replicas import reports
from inference_gateway.replicas.reports import Tokens, UsageReport

NOTHING = UsageReport("", {})
"""The report of a replica that has not reported yet."""

_LOG = logging.getLogger("explsched.gateway")
_READ_S = 5.0
_MINUTE_S = 60.0
_KEPT_DAYS = 400
_INVALID = (msgspec.DecodeError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class DayUsage:
    """The usage of a service by a key on one day (`2027-01-31`, in the gateway's time zone)."""

    day: str
    key: str
    service: str
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class UsageState:
    """The sums. `counted` has for each replica its service and the part of its report that the sums contain."""

    days: tuple[DayUsage, ...] = ()
    counted: dict[str, tuple[str, UsageReport]] = field(default_factory=dict)


def read(paths: GatewayPaths) -> UsageState:
    """The saved sums. Raises `GatewayError` if they cannot be read."""
    try:
        return _loaded(paths)
    except OSError as error:
        raise GatewayError(f"{paths.usage}: cannot be read: {error.strerror}") from error
    except _INVALID as error:
        raise GatewayError(f"{paths.usage}: is invalid: {error}") from error


def _loaded(paths: GatewayPaths) -> UsageState:
    try:
        return msgspec.json.decode(paths.usage.read_bytes(), type=UsageState)
    except FileNotFoundError:
        return UsageState()


class UsageSums:
    """Adds up the replicas' reports every few seconds."""

    def __init__(self, paths: GatewayPaths, keys: Iterable[ApiKey] = ()) -> None:
        self._paths = paths
        self._known = UsageState()
        self._saved: UsageState | None = None
        self._due_s = 0.0
        self._here: Mapping[str, str] = {}
        self._keys = tuple(key for key in keys if key.metered)
        self._latest: deque[tuple[float, Mapping[str, int]]] = deque()

    def update(self, replicas: Iterable[Replica], now_s: float) -> None:
        """Read the reports if it is time. The last report of a replica that has ended is read once more."""
        if self._due_s - _READ_S <= now_s < self._due_s:
            return
        self._due_s = now_s + _READ_S
        here = {replica.name: replica.service for replica in replicas}
        if self._saved is None and not self._load(now_s):
            self._here = {**self._here, **here}
            return
        counted = {name: service for name, (service, _) in self._known.counted.items()}
        known = _with(self._known, self._reported({**counted, **self._here, **here}), now_s)
        self._here = here
        self._note(known, now_s)
        # With those that have reported nothing yet: a successor is to read the last report of one that ends before it
        # looks. Kept even if it cannot be saved: else, on a full disk, the same tokens would be counted every time.
        present = {name: known.counted.get(name, (service, NOTHING)) for name, service in here.items()}
        self._known = replace(known, counted=present)
        if self._known != self._saved and state.save(self._paths.usage, self._known):
            self._saved = self._known

    def update_now(self, replicas: Iterable[Replica], now_s: float) -> None:
        """Read the reports though it is not time, because this process ends."""
        self._due_s = now_s
        self.update(replicas, now_s)

    def _load(self, now_s: float) -> bool:
        """Read the saved sums, or move them aside if they are invalid. False if storage fails: they may be whole."""
        path = self._paths.usage
        try:
            try:
                self._known = self._saved = _loaded(self._paths)
            except _INVALID as error:
                aside = path.rename(path.with_name(f"{path.name}.invalid-{now_s:.0f}"))
                event(_LOG, logging.ERROR, "usage is invalid, counting anew", file=str(aside), why=str(error))
                self._saved = UsageState()
        except OSError as error:
            why = error.strerror or str(error)
            event(_LOG, logging.ERROR, "usage cannot be read, nothing is counted yet", file=str(path), why=why)
        return self._saved is not None

    def _reported(self, services: Mapping[str, str]) -> dict[str, tuple[str, UsageReport]]:
        """The service and the report of each replica that has written one."""
        found = ((name, service, reports.usage_of(self._paths.replica(name))) for name, service in services.items())
        return {name: (service, report) for name, service, report in found if report is not None}

    def held_back(self, now_s: float) -> dict[str, int]:
        """The keys that have used up their tokens, and until when they are refused (seconds since the epoch).

        Requests sent before a replica's report is read are still admitted: about ten seconds' worth.
        """
        found: dict[str, int] = {}
        today = _by_key(self._known, _day(now_s))
        for key in self._keys:
            free_s = now_s
            if key.tokens_per_day is not None and today.get(key.name, 0) >= key.tokens_per_day:
                free_s = _midnight_after(now_s)
            if key.tokens_per_minute is not None:
                spent = [(at_s, used.get(key.name, 0)) for at_s, used in self._latest]
                free_s = max(free_s, _free_s(spent, key.tokens_per_minute, now_s))
            if free_s > now_s:
                found[key.name] = math.ceil(free_s)
        return found

    def _note(self, known: UsageState, now_s: float) -> None:
        """Keep, for a minute, the tokens that were added since the last update."""
        if self._keys:
            before, after = _by_key(self._known), _by_key(known)
            self._latest.append((now_s, {key: total - before.get(key, 0) for key, total in after.items()}))
            while self._latest[0][0] <= now_s - _MINUTE_S:
                self._latest.popleft()


class ReadingRates:
    """The prompt bytes that a replica of each service reads per second, by the last reports of its replicas.

    A rate is kept until a new one is known, for instance while a service has no replicas at night.
    """

    def __init__(self, paths: GatewayPaths) -> None:
        self._paths = paths
        self._due_s = 0.0
        self._rates: dict[str, float] = {}

    def update(self, replicas: Iterable[Replica], now_s: float) -> Mapping[str, float]:
        """Read the reports if it is time; services with too few measurements are left out."""
        if not self._due_s - _READ_S <= now_s < self._due_s:
            self._due_s = now_s + _READ_S
            found: dict[str, list[Stretch]] = {}
            for replica in replicas:
                found.setdefault(replica.service, []).extend(reports.reading_of(self._paths.replica(replica.name)))
            rates = {service: reading_rate(stretches) for service, stretches in found.items()}
            self._rates |= {service: rate for service, rate in rates.items() if rate}
        return dict(self._rates)


def _by_key(known: UsageState, day: str | None = None) -> dict[str, int]:
    """The tokens of each key, on all days or on one."""
    found: dict[str, int] = {}
    for entry in known.days:
        if day in (None, entry.day):
            found[entry.key] = found.get(entry.key, 0) + entry.tokens.prompt + entry.tokens.completion
    return found


def _free_s(spent: Sequence[tuple[float, int]], limit: int, now_s: float) -> float:
    """The earliest time at which less than `limit` of what was spent (oldest first) is within the last minute."""
    left = sum(tokens for _, tokens in spent)
    for at_s, tokens in spent:
        if left < limit:
            break
        left -= tokens
        now_s = max(now_s, at_s + _MINUTE_S)
    return now_s


def _midnight_after(now_s: float) -> float:
    day = datetime.datetime.fromtimestamp(now_s).astimezone().date() + datetime.timedelta(days=1)
    return datetime.datetime.combine(day, datetime.time.min).astimezone().timestamp()


def _with(known: UsageState, reported: Mapping[str, tuple[str, UsageReport]], now_s: float) -> UsageState:
    """The sums with what is new in the reports."""
    before = {name: known.counted.get(name, ("", NOTHING))[1] for name in reported}
    news = {name: (service, one) for name, (service, one) in reported.items() if one != before[name]}
    if not news:
        return known
    days = {(found.day, found.key, found.service): found.tokens for found in known.days}
    today = _day(now_s)
    for name, (service, report) in news.items():
        base = before[name].by_key if before[name].run == report.run else {}
        for key, tokens in report.by_key.items():
            new = tokens - base.get(key, Tokens())
            if new.requests:
                days[today, key, service] = days.get((today, key, service), Tokens()) + new
    oldest = _day(now_s - _KEPT_DAYS * 86_400)
    kept = tuple(DayUsage(*where, tokens) for where, tokens in sorted(days.items()) if where[0] >= oldest)
    return UsageState(kept, {**known.counted, **news})


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at_s))
