"""The Lua that HAProxy runs decides as the simulator's Python does, and forgets those whose clients have left."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lupa.lua53 import LuaRuntime

from inference_gateway.dataplane.plane import TURNS
from inference_gateway.queueing import LOOK_S, Fleet, Turns
from simulation.requests.service import InTurn

SECOND = 1000
TARGET_S = 2.0


@dataclass(slots=True)
class Haproxy:
    """Two replicas' places, and what waits in HAProxy's own queue."""

    ready: int
    concurrency: int
    busy: int = 0
    queued: int = 0

    @property
    def fleet(self) -> Fleet:
        return Fleet(self.ready, self.ready * self.concurrency - self.busy, self.queued)

    def take(self) -> None:
        if self.fleet.free > 0:
            self.busy += 1
        else:
            self.queued += 1

    def answer(self) -> None:
        if self.queued:
            self.queued -= 1
        else:
            self.busy = max(0, self.busy - 1)


@dataclass(slots=True)
class LuaQueue:
    """The order as HAProxy has it: each held request looks for itself, in any order."""

    turns: Turns
    haproxy: Haproxy
    random: Random
    gone: list[int] = field(default_factory=list)
    held: dict[int, Any] = field(default_factory=dict)
    lua: LuaRuntime = field(default_factory=LuaRuntime)
    line: Any = None
    rules: Any = None

    def __post_init__(self) -> None:
        self.line = self.lua.execute(TURNS.read_text())["Line"]["new"]()
        turns = self.turns
        self.rules = self.lua.table(
            in_time_ms=turns.in_time_s * SECOND,
            patience_ms=turns.patience_s * SECOND,
            buffer=turns.buffer,
            reserve=turns.reserve,
            look_ms=LOOK_S * SECOND,
        )

    def add(self, request: int, now_s: float) -> None:
        if self.haproxy.queued:
            self.held[request] = self.line["enter"](self.line, now_s * SECOND)
        else:
            self.go(request)

    def wait(self, now_s: float) -> None:
        """All that are held are still there."""
        for here in self.held.values():
            here["looked"] = now_s * SECOND

    def go(self, request: int) -> None:
        self.gone.append(request)
        self.haproxy.take()

    def look(self, now_s: float) -> None:
        """Until a round changes nothing."""
        self.wait(now_s)
        before = -1
        while before != len(self.gone):
            before = len(self.gone)
            for request in self.random.sample(sorted(self.held), len(self.held)):
                here = self.held[request]
                fleet = self.haproxy.fleet
                told = self.lua.table(ready=fleet.ready, free=fleet.free, queued=fleet.queued)
                ahead, room = self.line["standing"](self.line, here, now_s * SECOND, told, self.rules)
                if ahead < room:
                    self.line["leave"](self.line, self.held.pop(request))
                    self.go(request)


@dataclass(slots=True)
class PythonQueue:
    """The order as the simulator has it."""

    queue: InTurn
    haproxy: Haproxy
    gone: list[int] = field(default_factory=list)
    taken: int = 0

    def add(self, request: int, now_s: float) -> None:
        self.queue.add(request, now_s, self.haproxy.fleet)
        self._dispatch()

    def look(self, now_s: float) -> None:
        before = -1
        while before != len(self.gone):
            before = len(self.gone)
            self.queue.release_due(now_s, self.haproxy.fleet)
            self._dispatch()

    def _dispatch(self) -> None:
        """What is in HAProxy's queue has gone; the replicas take the first of it."""
        while self.haproxy.fleet.free > 0 and (request := self.queue.take(0.0)) is not None:
            self.gone.append(request)
            self.haproxy.busy += 1
        self.haproxy.queued = len(self.queue) - self.queue.held

    def answer(self) -> None:
        self.haproxy.busy = max(0, self.haproxy.busy - 1)
        self._dispatch()

    @property
    def let_go(self) -> set[int]:
        """Those that were served or are in HAProxy's queue."""
        return set(range(self.taken)) - self.waiting

    @property
    def waiting(self) -> set[int]:
        _in_haproxy, in_time, late = self.queue.lines
        return {*in_time, *late}


STEPS = st.lists(st.tuples(st.sampled_from("+++--."), st.sampled_from([0.0, 0.053, 0.301, 1.501])), max_size=80)
"""A request comes, an answer, or all that are held look; and the seconds until then, whose sums are no limit to the
millisecond: there rounding decides."""


def filled(places: int, held: int) -> list[tuple[str, float]]:
    """All places are taken, one request is in HAProxy's queue, and some are held."""
    return [("+", 0.0)] * (places + 1 + held)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 3), st.integers(1, 8), st.sampled_from([0.2, 4.0, 60.0]), st.integers(0, 9))
@example(steps=filled(24, 40) + [("-", 0.2), (".", 0.05)] * 60, ready=3, concurrency=8, per_s=4.0, seed=1)
@example(steps=filled(16, 20) + [("-", 1.5), ("+", 0.0), (".", 0.0)] * 20, ready=2, concurrency=8, per_s=0.2, seed=2)
@example(
    steps=[*filled(16, 9), (".", 1.5), (".", 1.5), *filled(0, 3), *[("-", 0.0)] * 12, ("+", 0.0), (".", 0.0)],
    ready=2,
    concurrency=8,
    per_s=0.2,
    seed=3,
)
def test_lua_and_python_let_the_same_requests_go(
    steps: list[tuple[str, float]], ready: int, concurrency: int, per_s: float, seed: int
) -> None:
    turns = Turns(TARGET_S, 10.0, per_s, concurrency)
    arrival_s: list[float] = []
    model = PythonQueue(InTurn(turns, arrival_s), Haproxy(ready, concurrency))
    lua = LuaQueue(turns, Haproxy(ready, concurrency), Random(seed))
    now_s = 0.0
    for what, after_s in steps:
        now_s += after_s
        lua.wait(now_s)
        if what == "+":
            arrival_s.append(now_s)
            model.taken += 1
            model.add(len(arrival_s) - 1, now_s)
            lua.add(len(arrival_s) - 1, now_s)
        elif what == "-":
            model.answer()
            lua.haproxy.answer()
        if what == "." or len(arrival_s) - 1 in lua.held:
            model.look(now_s)
            lua.look(now_s)
        assert set(lua.gone) == model.let_go
        assert lua.haproxy.fleet == model.haproxy.fleet
        assert lua.line["held"] == model.queue.held


@pytest.fixture
def lua() -> LuaQueue:
    """One replica with one place, which is taken; one request is in HAProxy's queue."""
    queue = LuaQueue(Turns(TARGET_S, 10.0, 1.0, 1), Haproxy(1, 1), Random(0))
    queue.add(0, 0.0)
    queue.add(1, 0.0)
    return queue


def test_who_has_not_looked_for_three_seconds_is_forgotten(lua: LuaQueue) -> None:
    for request in (2, 3, 4):
        lua.add(request, 0.0)
    del lua.held[2], lua.held[3]  # their clients have left
    lua.look(2.9)
    assert lua.line["count"](lua.line, 3000) == 3
    lua.look(3.1)
    assert lua.line["count"](lua.line, 3100) == 1
    lua.haproxy.answer()
    lua.haproxy.answer()
    lua.look(3.2)
    assert lua.gone == [0, 1, 4]


def test_those_left_behind_are_counted_out_without_another_request(lua: LuaQueue) -> None:
    lua.add(2, 0.0)
    assert [lua.line["count"](lua.line, now_ms) for now_ms in (3000, 3001, 3002)] == [1, 0, 0]


def test_late_ones_leave_places_to_those_in_time(lua: LuaQueue) -> None:
    """Of four free places two are for those in time, and 0.15 for the next one in time."""
    for request, at_s in ((2, 0.0), (3, 2.5), (4, 2.5)):
        lua.add(request, at_s)
    fleet = lua.lua.table(ready=1, free=4, queued=0)
    ahead, room = lua.line["standing"](lua.line, lua.held[2], 3000, fleet, lua.rules)
    assert (ahead, room) == (0, pytest.approx(1.85))
    ahead, room = lua.line["standing"](lua.line, lua.held[4], 3000, fleet, lua.rules)
    assert (ahead, room) == (1, 5)


def test_who_stands_far_behind_looks_the_more_seldom(lua: LuaQueue) -> None:
    look_ms = lua.lua.execute(TURNS.read_text())["look_ms"]
    assert [look_ms(before, lua.rules) for before in (0, 50, 100, 500, 100_000)] == [50, 50, 100, 500, 1000]


def test_a_settling_is_bounded(lua: LuaQueue) -> None:
    """HAProxy interrupts a long action in the middle; what is left to do is done at the next look."""
    for request in range(2, 1002):
        lua.add(request, 0.0)
    lua.held.clear()
    firsts = []
    for _look in range(7):
        lua.line["settle"](lua.line, 5000, lua.rules["in_time_ms"])
        firsts.append(lua.line["first"])
    assert firsts == [201, 401, 601, 801, 1001, 1001, 1001]
    assert lua.line["in_time"] == 1001
