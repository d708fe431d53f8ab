"""Calls that may take long, in an executor: a hanging slurmctld or replica never stops the reconcile loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

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
