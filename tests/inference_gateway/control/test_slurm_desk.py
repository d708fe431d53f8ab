"""Slurm beside the loop: one errand of a kind at a time, looks that are not too many, and what is refused."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from inference_gateway.control.errands import Errands, Outcome
from inference_gateway.control.slurm_desk import SlurmDesk
from slurm_plugin.client.changes import CancelJob, Change, ChangeFailure
from slurm_plugin.client.errors import SlurmUnreachableError
from tests.inference_gateway.control.doubles import AtOnce, FakeSlurm, job

TAG = "igw:g:chat:g1"


class Later(Executor):
    """Does work when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future

    def work(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Counted(FakeSlurm):
    """Counts looks."""

    looks = 0

    def tagged_jobs(self, prefix: str) -> Any:
        self.looks += 1
        return super().tagged_jobs(prefix)


def desk_of(slurm: FakeSlurm, poll_s: float = 5.0, executor: Executor | None = None) -> SlurmDesk:
    return SlurmDesk(slurm, "g", poll_s, executor or AtOnce())


class TestErrands:
    def test_one_of_a_key_at_a_time(self) -> None:
        executor = Later()
        errands: Errands[str, int] = Errands(executor)
        assert errands.start("a", int, "1")
        assert not errands.start("a", int, "2")
        assert errands.start("b", int, "3")
        assert errands.outcomes() == []
        executor.work()
        assert errands.outcomes() == [Outcome("a", 1, None), Outcome("b", 3, None)]
        assert errands.outcomes() == [], "each is told once"
        assert errands.start("a", int, "4")

    def test_an_error_is_an_outcome(self) -> None:
        errands: Errands[str, int] = Errands(AtOnce())
        errands.start("a", int, "no number")
        (found,) = errands.outcomes()
        assert (found.key, found.result, type(found.error)) == ("a", None, ValueError)


class TestLooks:
    def test_jobs_by_name_and_of_two_the_later(self) -> None:
        slurm = FakeSlurm()
        for number in (5, 3, 9):
            slurm.known[number] = job(number, "chat-1", TAG)
        slurm.known[4] = job(4, "chat-2", TAG)
        slurm.known[6] = job(6, "chat-3", "igw:g2:chat:g1")
        found = desk_of(slurm).look(77.0)
        assert ({name: one.job_id for name, one in found.jobs.items()}, found.began_s) == (
            {"chat-1": 9, "chat-2": 4},
            77.0,
        )

    def test_they_are_made_as_often_as_configured(self) -> None:
        slurm = Counted()
        desk = desk_of(slurm)
        for second in range(100, 112):
            desk.advance(second)
        assert slurm.looks == 3

    def test_in_a_hurry_once_a_second(self) -> None:
        slurm = Counted()
        desk = desk_of(slurm)
        desk.advance(100.0)
        desk.hurry()
        desk.advance(100.5)
        assert slurm.looks == 1
        desk.advance(101.0)
        assert slurm.looks == 2
        desk.advance(102.0)
        assert slurm.looks == 2, "the hurry is over"

    def test_one_that_hangs_is_waited_for(self) -> None:
        executor = Later()
        desk = desk_of(FakeSlurm(), executor=executor)
        for second in range(100, 120):
            desk.advance(second)
        assert len(executor.waiting) == 1
        executor.work()
        desk.advance(120.0)
        assert desk.listing.began_s == 100.0

    def test_a_failed_one_leaves_the_last_listing(self) -> None:
        slurm = FakeSlurm()
        slurm.known[1] = job(1, "chat-1", TAG)
        desk = desk_of(slurm, poll_s=1.0)
        desk.advance(100.0)
        desk.advance(101.0)
        slurm.silent = True
        for second in (102.0, 103.0):
            desk.advance(second)
        assert isinstance(desk.fault, SlurmUnreachableError)
        assert (list(desk.listing.jobs), desk.listing.began_s) == (["chat-1"], 101.0)
        slurm.silent = False
        for second in (104.0, 105.0):
            desk.advance(second)
        assert desk.fault is None


class TestChanges:
    def test_a_submission_comes_back_by_name_and_is_looked_for_soon(self) -> None:
        slurm = Counted()
        desk = desk_of(slurm, poll_s=300.0)
        assert desk.advance(100.0) == []
        desk.submit("chat-1", "#!/bin/bash\n", ["--job-name=chat-1", f"--comment={TAG}"])
        assert desk.advance(101.0) == [Outcome("chat-1", 1, None)]
        desk.advance(102.0)
        assert list(desk.listing.jobs) == ["chat-1"]

    def test_cancellations_are_followed_by_a_look(self) -> None:
        slurm = Counted()
        slurm.known[1] = job(1, "chat-1", TAG)
        desk = desk_of(slurm)
        desk.advance(100.0)
        desk.cancel([])
        desk.advance(101.0)
        assert slurm.looks == 1
        desk.cancel([1])
        desk.advance(102.0)
        assert (slurm.cancelled, slurm.looks) == ([1], 2)
        assert desk.refusals() == []

    @pytest.mark.parametrize(
        ("message", "told"),
        [
            ("Access/permission denied", True),
            ("Job/step already completing or completed", False),
            ("Invalid job id specified", False),
        ],
    )
    def test_what_is_refused_is_told_unless_the_job_has_ended(
        self, monkeypatch: pytest.MonkeyPatch, message: str, *, told: bool
    ) -> None:
        slurm = FakeSlurm()

        def refuse(changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
            assert changes == [CancelJob(1)]
            return (ChangeFailure(changes[0], message),)

        monkeypatch.setattr(slurm, "apply", refuse)
        desk = desk_of(slurm)
        desk.cancel([1])
        assert desk.refusals() == ([message] if told else [])
        assert desk.refusals() == []

    def test_a_silent_slurm_is_told(self) -> None:
        slurm = FakeSlurm(silent=True)
        desk = desk_of(slurm)
        desk.cancel([1])
        assert desk.refusals() == ["squeue: no answer from slurmctld"]
