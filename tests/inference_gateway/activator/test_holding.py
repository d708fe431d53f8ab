"""The waiting line of one service, without HTTP: order, bounds, deadlines, and what a replica is given."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from inference_gateway.activator import holding
from inference_gateway.activator.holding import FullError, GivenUpError, Waiting
from inference_gateway.dataplane.endpoints import ActivatorState, HeldService
from inference_gateway.model import Endpoint, StartForecast

SERVICE = HeldService("chat", (), 3, 10.0, 1.0, 1, 0.5, 30.0)
FAR_S = 3600.0
A, B = (Endpoint(name, "127.0.0.1", 1, 1) for name in "ab")


@dataclass
class Line:
    """A line whose replicas are set by hand, and what it has announced."""

    ready: list[Endpoint] = field(default_factory=list)
    announced: list[int] = field(default_factory=list)
    waiting: Waiting = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = Waiting(SERVICE, lambda: self.ready, self.announced.append)

    def acquire(self, deadline_s: float = FAR_S) -> asyncio.Task[Endpoint]:
        """Begin to wait; `deadline_s` from now."""
        loop = asyncio.get_running_loop()
        return asyncio.ensure_future(self.waiting.acquire(loop.time() + deadline_s))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def run(scenario: Callable[[Line], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Line())

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look always; what is for a second is for long, where a test does not say otherwise."""
    monkeypatch.setattr(holding, "LOOK_S", 0.0)
    monkeypatch.setattr(holding, "AVOID_S", FAR_S)
    monkeypatch.setattr(holding, "ANNOUNCE_S", FAR_S)


def test_with_a_replica_nobody_waits() -> None:
    async def scenario(line: Line) -> None:
        line.ready = [A]
        assert await line.acquire(-1.0) == A, "the deadline is for waiting"
        assert line.waiting.state() == ActivatorState(0, {"a": 1})
        assert (line.announced, line.waiting.cold_starts) == ([], 0)
        line.waiting.release(A)
        assert line.waiting.state() == ActivatorState(0, {})

    run(scenario)


def test_first_come_first_served_and_never_more_than_the_concurrency() -> None:
    async def scenario(line: Line) -> None:
        pending = [line.acquire() for _ in range(3)]
        await until(lambda: line.waiting.waiting == 3)
        line.ready = [A]
        for task in pending:
            await until(task.done)
            assert [other.done() for other in pending] == [True] * (pending.index(task) + 1) + [False] * (
                2 - pending.index(task)
            )
            assert line.waiting.relaying == {"a": 1}
            line.waiting.release(A)
        assert line.waiting.state() == ActivatorState(0, {})

    run(scenario)


def test_who_comes_later_does_not_pass_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LOOK_S", FAR_S)

    async def scenario(line: Line) -> None:
        line.ready = [A]
        await line.acquire()
        first, second = line.acquire(), line.acquire()
        await until(lambda: line.waiting.waiting == 2 and line.announced != [])
        line.waiting.relaying.clear()  # the replica has room before the line has looked again
        third = line.acquire()
        await until(lambda: line.waiting.waiting == 3)
        line.waiting.hand_out()
        await until(first.done)
        assert not second.done()
        assert not third.done()
        for task in (second, third):
            task.cancel()

    run(scenario)


def test_the_replica_with_the_fewest_requests_from_here() -> None:
    async def scenario(line: Line) -> None:
        line.ready = [replace(A, concurrency=2), replace(B, concurrency=2)]
        taken = [(await line.acquire()).name for _ in range(4)]
        assert sorted(taken[:2]) == sorted(taken[2:]) == ["a", "b"]

    run(scenario)


def test_no_more_wait_than_may() -> None:
    async def scenario(line: Line) -> None:
        pending = [line.acquire() for _ in range(3)]
        await until(lambda: line.waiting.waiting == 3)
        with pytest.raises(FullError):
            await line.acquire()
        assert line.waiting.waiting == 3
        pending[0].cancel()
        await until(lambda: line.waiting.waiting == 2)
        pending[0] = line.acquire()
        await until(lambda: line.waiting.waiting == 3)
        for task in pending:
            task.cancel()

    run(scenario)


def test_the_deadline_ends_the_wait_and_frees_the_place() -> None:
    async def scenario(line: Line) -> None:
        with pytest.raises(TimeoutError):
            await line.acquire(0.0)
        assert line.waiting.waiting == 0
        line.ready = [A]
        assert await line.acquire() == A
        assert line.waiting.relaying == {"a": 1}, "nothing was given to the one who gave up"

    run(scenario)


def test_what_comes_in_the_moment_of_giving_up_goes_to_the_next() -> None:
    async def scenario(line: Line) -> None:
        gone, next_one = line.acquire(), line.acquire()
        await until(lambda: line.waiting.waiting == 2)
        line.ready = [A]
        line.waiting.hand_out()  # `gone` has its replica, and has not run since
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await next_one == A
        assert line.waiting.state() == ActivatorState(0, {"a": 1})

    run(scenario)


def test_one_that_refused_the_connection_is_left_out_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(line: Line) -> None:
        line.ready = [A]
        line.waiting.avoid(A)
        pending = line.acquire()
        await until(lambda: line.waiting.waiting == 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not pending.done()
        line.ready = [A, B]
        assert await pending == B
        monkeypatch.setattr(holding, "AVOID_S", 0.0)
        line.waiting.avoid(A)
        assert await line.acquire() == A

    run(scenario)


def test_the_control_plane_is_told_once_and_again_while_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(line: Line) -> None:
        pending = [line.acquire() for _ in range(2)]
        await until(lambda: line.announced == [2])
        for _ in range(100):
            await asyncio.sleep(0)
        assert (line.announced, line.waiting.cold_starts) == ([2], 1)
        monkeypatch.setattr(holding, "ANNOUNCE_S", 0.0)
        await until(lambda: len(line.announced) > 3)
        for task in pending:
            task.cancel()
        await until(lambda: line.waiting.waiting == 0)
        told = len(line.announced)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(line.announced) == told, "nobody waits"
        again = line.acquire()
        await until(lambda: len(line.announced) > told)
        assert line.waiting.cold_starts == 2
        again.cancel()

    run(scenario)


def test_nobody_waits_for_a_service_that_has_given_up() -> None:
    async def scenario(line: Line) -> None:
        first = line.acquire()
        await until(lambda: line.waiting.waiting == 1)
        line.waiting.expect(StartForecast(7, given_up=True))
        with pytest.raises(GivenUpError):
            await first
        with pytest.raises(GivenUpError):
            await line.acquire()
        line.ready.append(A)
        assert await line.acquire() == A
        full = line.acquire()
        await until(lambda: line.waiting.waiting == 1)
        line.waiting.release(A)
        assert await full == A, "a replica is there: who waits for it waits for something"

    run(scenario)
