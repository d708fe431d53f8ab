"""Child processes that end again and again: how long each start is waited with."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from inference_gateway.supervisor import child as module
from inference_gateway.supervisor.child import Child


@dataclass
class Process:
    """One that ends when it is told."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


@dataclass
class Machine:
    """A clock and the processes that were started, with the time of each start."""

    now_s: float = 1000.0
    missing: bool = False
    started: list[Process] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def start(self, _command: Sequence[str], **_: object) -> Process:
        self.starts_s.append(self.now_s)
        if self.missing:
            raise FileNotFoundError(2, "No such file or directory")
        self.started.append(Process(len(self.started) + 1))
        return self.started[-1]

    def tended(self, child: Child, seconds: float) -> None:
        """Ten times a second, for so long."""
        for _ in range(round(seconds * 10)):
            self.now_s = round(self.now_s + 0.1, 3)
            child.keep_running()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(subprocess, "Popen", made.start)
    return made


def end_at_once(machine: Machine, child: Child, seconds: float) -> list[float]:
    """The times between starts while every process ends in the moment it was started."""
    for _ in range(round(seconds * 10)):
        machine.tended(child, 0.1)
        for process in machine.started:
            process.returncode = 1
    return [round(later - earlier, 1) for earlier, later in zip(machine.starts_s, machine.starts_s[1:], strict=False)]


def test_the_delay_before_each_start_doubles_up_to_half_a_minute(machine: Machine) -> None:
    child = Child("x", ["x"])
    waits_s = end_at_once(machine, child, 200)
    assert waits_s[:10] == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30], abs=0.2)


def test_a_running_child_is_not_started_again(machine: Machine) -> None:
    child = Child("x", ["x"])
    assert child.pid is None
    machine.tended(child, 100)
    assert (len(machine.started), child.pid) == (1, 1)
    machine.started[0].returncode = 1
    assert child.pid is None


@pytest.mark.parametrize(("ran_s", "again"), [(59.0, False), (61.0, True)])
def test_a_child_that_ran_for_a_minute_is_restarted_soon(machine: Machine, ran_s: float, *, again: bool) -> None:
    child = Child("x", ["x"])
    end_at_once(machine, child, 40)
    while child.pid is None:
        machine.tended(child, 0.1)
    machine.tended(child, ran_s)
    before = len(machine.started)
    machine.started[-1].returncode = 1
    machine.tended(child, 1)
    assert (len(machine.started) > before) == again


def test_a_missing_program_is_tried_twice_a_minute(machine: Machine) -> None:
    machine.missing = True
    child = Child("x", ["x"])
    machine.tended(child, 70)
    assert machine.starts_s == pytest.approx([1000.1, 1030.1, 1060.1])
    assert child.pid is None
    machine.missing = False
    machine.tended(child, 30)
    assert child.pid == 1
