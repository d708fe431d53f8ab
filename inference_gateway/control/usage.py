"""Sums up the replicas' reports: tokens by day, key and service, kept over restarts; and prompt reading rates.

A replica's report has the sums since its start; the end of a stream may lower what was estimated of it. How much of
them has been counted is saved in the same file as today's sums, so that nothing is counted twice, neither after a
restart of the control plane nor when a report is read again. While the file cannot be read nothing is counted and
nothing is written; if its content is invalid it is moved aside.

A day that is over has a file of its own. It is written before the day is removed from the first file, so a day that is
in both is complete in the first: we were killed between.
"""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
_CLOSED_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class DayUsage:
    """The usage of a service by a key on one day (`2027-01-31`, in the gateway's time zone)."""

    day: str
    key: str
    service: str
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class UsageState:
    """The sums of some days. `counted` has for each replica its service and the part of its report that is in them.

    `latest` has the tokens of the last minute, by key, and when they were counted, in seconds since the epoch; of a
    gateway without keys that are metered none.
    """

    days: tuple[DayUsage, ...] = ()
    counted: dict[str, tuple[str, UsageReport]] = field(default_factory=dict)
    latest: tuple[tuple[float, dict[str, int]], ...] = ()


def read(paths: GatewayPaths, since: str = "") -> UsageState:
    """The saved sums of the days from `since` on. Raises `GatewayError` if they cannot be read."""
    try:
        known = state.loaded(paths.usage, UsageState) or UsageState()  # first, or a day could be closed unseen
        in_both = {found.day for found in known.days}
        closed = [path for path in _closed(paths) if path.stem >= since and path.stem not in in_both]
        days = [found for path in closed for found in state.loaded(path, tuple[DayUsage, ...]) or ()]
    except OSError as error:
        raise GatewayError(f"{error.filename or paths.usage}: cannot be read: {error.strerror}") from error
    return replace(known, days=(*days, *(found for found in known.days if found.day >= since)))


def _closed(paths: GatewayPaths) -> list[Path]:
    """The files of the days that are over, the oldest first."""
    return sorted(paths.closed_usage.glob("????-??-??.json"))


class UsageSums:
    """Adds up the replicas' reports every few seconds."""

    def __init__(self, paths: GatewayPaths, keys: Iterable[ApiKey] = ()) -> None:
        self._paths = paths
        self._known = UsageState()
        self._saved: UsageState | None = None
        self._due_s = 0.0
        self._here: Mapping[str, str] = {}
        self._keys = tuple(key for key in keys if key.metered)

    def update(self, replicas: Iterable[Replica], now_s: float) -> None:
        """Read the reports if it is time. The last report of a replica that has ended is read once more."""
        if self._due_s - _READ_S <= now_s < self._due_s:
            return
        self._due_s = now_s + _READ_S
        here = {replica.name: replica.service for replica in replicas}
        today = _day(now_s)
        try:
            before = self._before(today, now_s)
        except OSError as error:
            about = {"file": str(error.filename or self._paths.usage), "why": error.strerror or str(error)}
            event(_LOG, logging.ERROR, "usage cannot be read, nothing is counted yet", **about)
            self._here = {**self._here, **here}
            return
        counted = {name: service for name, (service, _) in before.counted.items()}
        known = _with(before, self._reported({**counted, **self._here, **here}), today)
        self._here = here
        # With those that have reported nothing yet: a successor is to read the last report of one that ends before it
        # looks. Kept even if it cannot be saved: else, on a full disk, the same tokens would be counted every time.
        present = {name: known.counted.get(name, (service, NOTHING)) for name, service in here.items()}
        still_open = self._still_open(known.days, today, _day(now_s - _KEPT_DAYS * 86_400))
        self._known = UsageState(still_open, present, self._latest(before, known, now_s))
        if self._known != self._saved and state.save(self._paths.usage, self._known):
            self._saved = self._known

    def update_now(self, replicas: Iterable[Replica], now_s: float) -> None:
        """Read the reports though it is not time, because this process ends."""
        self._due_s = now_s
        self.update(replicas, now_s)

    def _before(self, today: str, now_s: float) -> UsageState:
        """The sums so far, with today's from the disk if none are known. Raises `OSError`: they may be whole."""
        if self._saved is None:
            self._known = self._saved = state.loaded_or_moved(self._paths.usage, UsageState, now_s) or UsageState()
        if any(found.day == today for found in self._known.days):
            return self._known
        # Closed already where the clock was ahead.
        days = state.loaded_or_moved(_day_file(self._paths, today), tuple[DayUsage, ...], now_s) or ()
        return replace(self._known, days=(*self._known.days, *days))

    def _still_open(self, days: Sequence[DayUsage], today: str, oldest: str) -> tuple[DayUsage, ...]:
        """Save other days than today in their own files, and remove those before `oldest`; returns what is left."""
        by_day: dict[str, list[DayUsage]] = {}
        for found in days:
            by_day.setdefault(found.day, []).append(found)
        past = sorted(by_day.keys() - {today})[:_CLOSED_AT_ONCE]  # after an upgrade there are many
        done = {day for day in past if day < oldest or state.save(_day_file(self._paths, day), by_day[day])}
        if done:
            self._prune(oldest)
        return tuple(found for found in days if found.day not in done)

    def _prune(self, oldest: str) -> None:
        try:
            for path in _closed(self._paths):
                if path.stem < oldest:
                    path.unlink()
        except OSError as error:
            event(_LOG, logging.ERROR, "old usage not removed", file=str(error.filename), why=error.strerror or "")

    def _reported(self, services: Mapping[str, str]) -> dict[str, tuple[str, UsageReport]]:
        """The service and the report of each replica that has written one."""
        found = ((name, service, reports.usage_of(self._paths.replica(name))) for name, service in services.items())
        return {name: (service, report) for name, service, report in found if report is not None}

    def held_back(self, now_s: float) -> dict[str, int]:
        """The keys that have used up their tokens, and until when they are refused (seconds since the epoch).

        What is written before a replica's report is read is still admitted: about ten seconds' worth, and answers that
        are not streamed until they end.
        """
        found: dict[str, int] = {}
        today = _by_key(self._known, _day(now_s)) if self._keys else {}
        for key in self._keys:
            free_s = now_s
            if key.tokens_per_day is not None and today.get(key.name, 0) >= key.tokens_per_day:
                free_s = _midnight_after(now_s)
            if key.tokens_per_minute is not None:
                spent = [(at_s, used.get(key.name, 0)) for at_s, used in self._known.latest]
                free_s = max(free_s, _free_s(spent, key.tokens_per_minute, now_s))
            if free_s > now_s:
                found[key.name] = math.ceil(free_s)
        return found

    def _latest(self, before: UsageState, known: UsageState, now_s: float) -> tuple[tuple[float, dict[str, int]], ...]:
        """The tokens of the last minute, with those that have been added now."""
        was, after = (_by_key(sums) if self._keys else {} for sums in (before, known))
        added = {key: total - was.get(key, 0) for key, total in after.items() if total != was.get(key, 0)}
        kept = (one for one in before.latest if now_s - _MINUTE_S < one[0] <= now_s)  # a clock may go back
        return (*kept, (now_s, added)) if added else tuple(kept)


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


def _with(known: UsageState, reported: Mapping[str, tuple[str, UsageReport]], today: str) -> UsageState:
    """The sums with what is new in the reports."""
    before = {name: known.counted.get(name, ("", NOTHING))[1] for name in reported}
    news = {name: (service, one) for name, (service, one) in reported.items() if one != before[name]}
    if not news:
        return known
    days = {(found.day, found.key, found.service): found.tokens for found in known.days}
    for name, (service, report) in news.items():
        base = before[name].by_key if before[name].run == report.run else {}
        for key, tokens in report.by_key.items():
            new = tokens - base.get(key, Tokens())
            if new != Tokens():
                days[today, key, service] = days.get((today, key, service), Tokens()) + new
    kept = tuple(DayUsage(*where, tokens) for where, tokens in sorted(days.items()))
    return UsageState(kept, {**known.counted, **news})


def _day_file(paths: GatewayPaths, day: str) -> Path:
    return paths.closed_usage / f"{day}.json"


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at_s))
