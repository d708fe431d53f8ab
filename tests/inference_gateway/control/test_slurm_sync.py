"""Slurm beside the loop: one task of a kind at a time, looks that are not too many, and what is refused."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from explsched.errors import SlurmUnreachableError
from inference_gateway.control.background_tasks import BackgroundTasks, TaskResult
from inference_gateway.control.slurm_sync import SlurmSync
from slurm_plugin.client.changes import CancelJob, Change, ChangeFailure
from slurm_plugin.client.records import QueuedJob
from tests.inference_gateway.control.doubles import AtOnce, job
from tests.slurm_kit import FakeSlurm

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


def sync_of(slurm: FakeSlurm, poll_s: float = 5.0, executor: Executor | None = None) -> SlurmSync:
    return SlurmSync(slurm, "g", poll_s, executor or AtOnce())


class TestBackgroundTasks:
    def test_calls_of_one_key_run_one_at_a_time(self) -> None:
        executor = Later()
        tasks: BackgroundTasks[str, int] = BackgroundTasks(executor)
        assert tasks.start("a", int, "1")
        assert not tasks.start("a", int, "2")
        assert tasks.start("b", int, "3")
        assert tasks.outcomes() == []
        executor.work()
        assert tasks.outcomes() == [TaskResult("a", 1, None), TaskResult("b", 3, None)]
        assert tasks.outcomes() == [], "each is told once"
        assert tasks.start("a", int, "4")

    def test_an_error_is_returned_as_the_outcome(self) -> None:
        tasks: BackgroundTasks[str, int] = BackgroundTasks(AtOnce())
        tasks.start("a", int, "no number")
        (found,) = tasks.outcomes()
        assert (found.key, found.result, type(found.error)) == ("a", None, ValueError)


class TestJobQueries:
    def test_jobs_are_listed_by_name_and_of_equal_names_the_later(self) -> None:
        slurm = FakeSlurm()
        for number in (5, 3, 9):
            slurm.known[number] = job(number, "chat-1", TAG)
        slurm.known[4] = job(4, "chat-2", TAG)
        slurm.known[6] = job(6, "chat-3", "igw:g2:chat:g1")
        found = sync_of(slurm).list_jobs(77.0)
        assert ({name: one.job_id for name, one in found.jobs.items()}, found.began_s) == (
            {"chat-1": 9, "chat-2": 4},
            77.0,
        )

    def test_jobs_are_listed_as_often_as_configured(self) -> None:
        slurm = Counted()
        slurm_sync = sync_of(slurm)
        for second in range(100, 112):
            slurm_sync.advance(second)
        assert slurm.looks == 3

    def test_jobs_are_listed_once_a_second_after_a_change(self) -> None:
        slurm = Counted()
        slurm_sync = sync_of(slurm)
        slurm_sync.advance(100.0)
        slurm_sync.hurry()
        slurm_sync.advance(100.5)
        assert slurm.looks == 1
        slurm_sync.advance(101.0)
        assert slurm.looks == 2
        slurm_sync.advance(102.0)
        assert slurm.looks == 2, "the hurry is over"
        slurm_sync.advance(50.0)
        assert slurm.looks == 3, "the clock was set back"

    def test_a_hanging_listing_is_waited_for(self) -> None:
        executor = Later()
        slurm_sync = sync_of(FakeSlurm(), executor=executor)
        for second in range(100, 120):
            slurm_sync.advance(second)
        assert len(executor.waiting) == 1
        executor.work()
        slurm_sync.advance(120.0)
        assert slurm_sync.listing.began_s == 100.0

    def test_a_failed_listing_keeps_the_last_one(self) -> None:
        slurm = FakeSlurm()
        slurm.known[1] = job(1, "chat-1", TAG)
        slurm_sync = sync_of(slurm, poll_s=1.0)
        slurm_sync.advance(100.0)
        slurm_sync.advance(101.0)
        slurm.silent = True
        for second in (102.0, 103.0):
            slurm_sync.advance(second)
        assert isinstance(slurm_sync.fault, SlurmUnreachableError)
        assert (list(slurm_sync.listing.jobs), slurm_sync.listing.began_s) == (["chat-1"], 101.0)
        slurm.silent = False
        for second in (104.0, 105.0):
            slurm_sync.advance(second)
        assert slurm_sync.fault is None


class TestTheQueue:
    def test_the_queue_is_listed_while_replicas_wait_in_it(self) -> None:
        """Others have started at 80, 90 and 100, and one waits before ours. All end by their time limits of an hour."""
        slurm = FakeSlurm()
        for job_id, start_s in ((11, 80.0), (12, 90.0), (13, 100.0)):
            slurm.known[job_id] = job(job_id, "theirs", "", state="RUNNING", start_s=start_s)
        slurm.known[14] = job(14, "theirs", "", state="PENDING", start_s=None)
        slurm.known[21] = job(21, "chat-1", TAG, state="RUNNING", start_s=70.0)
        slurm_sync = sync_of(slurm, poll_s=1.0)
        slurm_sync.advance(108.0)
        slurm_sync.advance(109.0)
        assert "queue" not in slurm.asked, "nobody of ours waits"
        slurm.known[22] = job(22, "chat-2", TAG, state="PENDING", start_s=None)
        slurm_sync.advance(110.0)
        slurm_sync.advance(111.0)
        assert 5.0 < (slurm_sync.line.turn_s(22, 110.0) or 0.0) < 3590.0
        assert slurm_sync.line.turn_s(14, 110.0) is None

    def test_a_slow_listing_of_the_queue_is_made_rarely(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A second each: again when fifty have gone."""
        clock = iter(range(1000))
        monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
        slurm = FakeSlurm()
        slurm.known[22] = job(22, "chat-2", TAG, state="PENDING", start_s=None)
        slurm_sync = sync_of(slurm, poll_s=1.0)
        asked: list[int] = []
        for second in range(100, 200):
            slurm.asked.clear()
            slurm_sync.advance(second)
            asked += [second] if "queue" in slurm.asked else []
        assert asked == [100, 150]

    def test_a_clock_that_is_set_back_does_not_keep_the_queue_from_being_listed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By an hour, while 400 jobs of others run and one of ours waits."""
        clock = iter(range(1000))
        monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
        slurm = FakeSlurm()
        for job_id in range(1000, 1400):
            slurm.known[job_id] = job(job_id, "theirs", "", state="RUNNING", start_s=5000.0 - job_id)
        slurm.known[22] = job(22, "chat-2", TAG, state="PENDING", start_s=None)
        slurm_sync = sync_of(slurm, poll_s=1.0)
        for second in (5000.0, 5001.0, 1400.0, 1401.0):
            slurm.asked.clear()
            slurm_sync.advance(second)
            assert ("queue" in slurm.asked) == (second in (5000.0, 1400.0))
        assert slurm_sync.line.turn_s(22, 1401.0) is not None

    def test_a_queue_that_cannot_be_listed_hides_no_replica(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where the jobs of all users are so many that Slurm does not list them in time."""
        slurm = FakeSlurm()
        slurm.known[22] = job(22, "chat-2", TAG, state="PENDING", start_s=None)

        def too_long() -> tuple[QueuedJob, ...]:
            raise SlurmUnreachableError("squeue: no answer within 15 s")

        monkeypatch.setattr(slurm, "queue", too_long)
        slurm_sync = sync_of(slurm)
        slurm_sync.advance(100.0)
        slurm_sync.advance(101.0)
        assert (list(slurm_sync.listing.jobs), slurm_sync.listing.queue, slurm_sync.fault) == (["chat-2"], None, None)


class TestChanges:
    def test_a_submission_returns_by_name_and_jobs_are_listed_soon(self) -> None:
        slurm = Counted()
        slurm_sync = sync_of(slurm, poll_s=300.0)
        assert slurm_sync.advance(100.0) == []
        slurm_sync.submit("chat-1", "#!/bin/bash\n", [["--job-name=chat-1", f"--comment={TAG}"]])
        assert slurm_sync.advance(101.0) == [TaskResult("chat-1", 1, None)]
        slurm_sync.advance(102.0)
        assert list(slurm_sync.listing.jobs) == ["chat-1"]

    def test_cancellations_are_followed_by_a_listing(self) -> None:
        slurm = Counted()
        slurm.known[1] = job(1, "chat-1", TAG)
        slurm_sync = sync_of(slurm)
        slurm_sync.advance(100.0)
        slurm_sync.cancel([])
        slurm_sync.advance(101.0)
        assert slurm.looks == 1
        slurm_sync.cancel([1])
        slurm_sync.advance(102.0)
        assert (slurm.cancelled, slurm.looks) == ([1], 2)
        assert slurm_sync.refusals() == []

    @pytest.mark.parametrize(
        ("message", "told"),
        [
            ("Access/permission denied", True),
            ("Job/step already completing or completed", False),
            ("Invalid job id specified", False),
        ],
    )
    def test_a_refused_cancellation_is_logged_unless_the_job_has_ended(
        self, monkeypatch: pytest.MonkeyPatch, message: str, *, told: bool
    ) -> None:
        slurm = FakeSlurm()

        def refuse(changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
            assert changes == [CancelJob(1)]
            return (ChangeFailure(changes[0], message),)

        monkeypatch.setattr(slurm, "apply", refuse)
        slurm_sync = sync_of(slurm)
        slurm_sync.cancel([1])
        assert slurm_sync.refusals() == ([message] if told else [])
        assert slurm_sync.refusals() == []

    def test_a_slurm_that_does_not_answer_is_logged(self) -> None:
        slurm = FakeSlurm(silent=True)
        slurm_sync = sync_of(slurm)
        slurm_sync.cancel([1])
        assert slurm_sync.refusals() == ["squeue: no answer from slurmctld"]
