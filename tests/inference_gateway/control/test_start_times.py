"""How long starts take, with those that still go on."""

from collections.abc import Sequence

import pytest

from inference_gateway.control.start_times import (
    EstimateLog,
    Foretold,
    Start,
    StartTimes,
    WaitingLine,
    median_left_s,
    quantile,
    slurm_knows_better,
)
from slurm_plugin.client.records import QueuedJob


@pytest.mark.parametrize(
    ("ended_s", "going_on_s", "share", "expected_s"),
    [
        ((10, 20, 30, 40), (), 0.5, 20),
        ((10, 20, 30, 40), (), 0.9, 40),
        ((10, 20, 30, 40), (5, 5), 0.5, 20),
        # Three of six are left after 30 s: 1 - 1/6 - 1/6 - 1/6.
        ((10, 20, 30, 40), (35, 90), 0.5, 30),
        ((10,), (15, 15, 60), 0.5, 60),
        ((7,), (), 0.5, 7),
        ((), (3, 4), 0.5, 4),
        # The age of 15 leaves after the first end: 3/4, then 1/2 of that at 20.
        ((10, 20), (15, 25), 0.5, 20),
    ],
)
def test_quantiles_with_censored_times(
    ended_s: tuple[float, ...], going_on_s: tuple[float, ...], share: float, expected_s: float
) -> None:
    assert quantile(ended_s, going_on_s, share) == expected_s


@pytest.mark.parametrize(
    ("ended_s", "age_s", "left_s"), [((10, 20, 30), 0, 20), ((10, 20, 30), 15, 5), ((10, 20, 30), 30, 30), ((), 8, 8)]
)
def test_who_has_waited_for_long_is_compared_with_those_who_waited_longer(
    ended_s: tuple[float, ...], age_s: float, left_s: float
) -> None:
    assert median_left_s(ended_s, (), age_s) == left_s


TIMES = StartTimes(waits_s=(100.0, 200.0, 400.0), loads_s=(60.0, 60.0))


@pytest.mark.parametrize(
    ("starts", "expected_s"),
    [
        ([], None),
        ([Start(running=True, age_s=20.0)], 40.0),
        ([Start(running=False, age_s=50.0, expected_in_s=500.0)], 560.0),
        ([Start(running=False, age_s=50.0, expected_in_s=-3.0)], 60.0),
        ([Start(running=False, age_s=150.0)], 50.0 + 60.0),
        ([Start(running=False, age_s=1000.0)], 1000.0 + 60.0),
        ([Start(running=False, age_s=50.0, expected_in_s=500.0), Start(running=True, age_s=20.0)], 40.0),
    ],
)
def test_the_next_one(starts: list[Start], expected_s: float | None) -> None:
    assert TIMES.next_in_s(starts, configured_s=30.0) == expected_s


@pytest.mark.parametrize(
    ("start", "expected_s"),
    [
        (Start(running=True, age_s=20.0), 10.0),
        (Start(running=True, age_s=45.0), 45.0),
        (Start(running=False, age_s=0.0, expected_in_s=500.0), 530.0),
        (Start(running=False, age_s=50.0), 80.0),
    ],
)
def test_before_anything_is_measured(start: Start, expected_s: float) -> None:
    assert StartTimes((), ()).next_in_s([start], configured_s=30.0) == expected_s


@pytest.mark.parametrize(
    ("foretold", "least_s", "most_s"),
    [
        ((), 100.0, 100.0),
        ([(100.0, 40.0)] * 10, 40.0, 45.0),
        ([(100.0, 300.0)] * 10, 260.0, 300.0),
        # One job tells something, but not all: half of what it says, on a scale of factors.
        ([(100.0, 25.0)], 45.0, 55.0),
        # Near the end of a wait jobs are quicker than at its beginning, as Slurm sees it.
        ([(200.0, 160.0), (25.0, 5.0)] * 10, 50.0, 70.0),
        # What was said of short waits alone is no more than in proportion for a long one, and no less than a short one.
        ([(10.0, 5.0), (9.0, 40.0)] * 10, 10.0, 100.0),
    ],
    ids=["nothing known", "jobs end early", "others come before", "one job", "a wait's end", "nothing like it known"],
)
def test_slurms_estimate_is_corrected_by_what_came_of_others(
    foretold: Sequence[tuple[float, float]], least_s: float, most_s: float
) -> None:
    times = StartTimes((), (15.0,), [Foretold(said_s, came_s, said_s) for said_s, came_s in foretold])
    start = Start(running=False, age_s=10.0, expected_in_s=100.0)
    assert least_s <= (times.next_in_s([start], 60.0) or 0.0) - 15.0 <= most_s


def test_of_a_long_wait_a_few_estimates_are_remembered_from_all_of_it() -> None:
    log = EstimateLog()
    for second in range(1000):
        log.note("a", float(second), Start(running=False, age_s=second, expected_in_s=2000.0 - second))
    came = log.started("a", 1000.0)
    assert len(came) == 8
    assert came[0] == Foretold(2000.0, 1000.0, 2000.0)
    assert [one.said_s for one in came] == sorted((one.said_s for one in came), reverse=True)
    assert came[-1].came_s < 250.0
    assert log.started("a", 1000.0) == ()


def test_jobs_that_are_not_waited_for_any_more_are_forgotten() -> None:
    log = EstimateLog()
    for name in ("a", "b"):
        log.note(name, 0.0, Start(running=False, age_s=0.0, expected_in_s=10.0))
    log.keep({"b"})
    assert (log.started("a", 5.0), log.started("b", 5.0)) == ((), (Foretold(10.0, 5.0, 10.0),))


def running(job_id: int, start_s: float, partition: str = "gpu") -> QueuedJob:
    return QueuedJob(job_id, (partition,), 1, ready=False, start_s=start_s)


def waiting(job_id: int, priority: int, partitions: tuple[str, ...] = ("gpu",), *, ready: bool = True) -> QueuedJob:
    return QueuedJob(job_id, partitions, priority, ready=ready, start_s=None)


class TestWaitingLine:
    STARTED = tuple(running(job_id, 10.0 * job_id) for job_id in range(10))
    """One every 10 s, until 90."""

    def test_the_turn_comes_when_those_before_have_started_at_the_pace_of_late(self) -> None:
        line = WaitingLine()
        others = (waiting(20, 5), waiting(21, 9), waiting(22, 7), waiting(23, 7))
        line.take(100.0, (*self.STARTED, *others), {22})
        turn_s = 10 * (2 - 1 / 3)
        assert line.turn_s(22, 100.0) == pytest.approx(turn_s), "after 21, and before 23, as important and younger"
        assert line.turn_s(22, 105.0) == pytest.approx(turn_s - 5)
        assert line.turn_s(22, 500.0) == 5.0, "it should have started: at any moment"
        assert line.turn_s(20, 100.0) is None, "nobody asked for that one"

    def test_jobs_of_other_partitions_and_held_ones_are_not_before_it(self) -> None:
        line = WaitingLine()
        others = (waiting(20, 9, ("cpu",)), waiting(21, 9, ready=False), waiting(22, 9, ("cpu", "gpu")), waiting(23, 1))
        elsewhere = tuple(running(100 + second, float(second), "cpu") for second in range(90))
        line.take(100.0, (*self.STARTED, *elsewhere, *others), {23})
        assert line.turn_s(23, 100.0) == pytest.approx(10 * (2 - 1 / 3))

    def test_jobs_that_have_ended_since_count_among_the_starts(self) -> None:
        line = WaitingLine()
        line.take(60.0, self.STARTED[:6], set())
        line.take(100.0, (*self.STARTED[6:], waiting(20, 1)), {20})
        assert line.turn_s(20, 100.0) == pytest.approx(10 * (1 - 1 / 3))

    def test_the_pace_is_that_of_the_latest_starts(self) -> None:
        line = WaitingLine()
        early = tuple(running(job_id, float(job_id)) for job_id in range(50))
        late = tuple(running(100 + number, 1000.0 + 10 * number) for number in range(30))
        line.take(1300.0, (*early, *late, waiting(200, 1)), {200})
        assert line.turn_s(200, 1300.0) == pytest.approx(10 * (1 - 1 / 3), rel=0.05)

    @pytest.mark.parametrize("jobs", [(), (waiting(5, 1),), (running(1, 3.0), waiting(5, 1))])
    def test_without_starts_nothing_is_said(self, jobs: tuple[QueuedJob, ...]) -> None:
        line = WaitingLine()
        line.take(100.0, jobs, {5})
        assert line.turn_s(5, 100.0) is None


@pytest.mark.parametrize(
    ("foretold", "left_s"),
    [
        ((), 30.0),
        ([Foretold(100.0, 40.0, 42.0, 41.0)] * 20, 30.0),
        ([Foretold(100.0, 40.0, 42.0, 400.0)] * 20, 41.8),
        ([Foretold(100.0, 40.0, 42.0)] * 20, 30.0),
    ],
    ids=["nothing known", "turns came true", "turns did not", "turns were not known"],
)
def test_who_came_truer_is_believed(foretold: Sequence[Foretold], left_s: float) -> None:
    times = StartTimes((), (15.0,), foretold)
    start = Start(running=False, age_s=10.0, expected_in_s=100.0, turn_in_s=30.0)
    assert (times.next_in_s([start], 60.0) or 0.0) - 15.0 == pytest.approx(left_s, rel=0.02)
    assert slurm_knows_better(foretold) == (left_s > 40.0)
