"""How long starts take, with those that still go on."""

from collections.abc import Sequence

import pytest

from inference_gateway.control.start_times import (
    EstimateLog,
    Foretold,
    ReplicaStart,
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
def test_a_long_waiting_job_is_compared_with_longer_waits(
    ended_s: tuple[float, ...], age_s: float, left_s: float
) -> None:
    assert median_left_s(ended_s, (), age_s) == left_s


TIMES = StartTimes(waits_s=(100.0, 200.0, 400.0), loads_s=(60.0, 60.0))


@pytest.mark.parametrize(
    ("starts", "expected_s"),
    [
        ([], None),
        ([ReplicaStart(running=True, age_s=20.0)], 40.0),
        ([ReplicaStart(running=False, age_s=50.0, expected_in_s=500.0)], 560.0),
        ([ReplicaStart(running=False, age_s=50.0, expected_in_s=-3.0)], 60.0),
        ([ReplicaStart(running=False, age_s=150.0)], 50.0 + 60.0),
        ([ReplicaStart(running=False, age_s=1000.0)], 1000.0 + 60.0),
        ([ReplicaStart(running=False, age_s=50.0, expected_in_s=500.0), ReplicaStart(running=True, age_s=20.0)], 40.0),
    ],
)
def test_the_next_start_is_the_earliest_of_those_under_way(
    starts: list[ReplicaStart], expected_s: float | None
) -> None:
    assert TIMES.next_in_s(starts, configured_s=30.0) == expected_s


@pytest.mark.parametrize(
    ("start", "expected_s"),
    [
        (ReplicaStart(running=True, age_s=20.0), 10.0),
        (ReplicaStart(running=True, age_s=45.0), 45.0),
        (ReplicaStart(running=False, age_s=0.0, expected_in_s=500.0), 530.0),
        (ReplicaStart(running=False, age_s=50.0), 80.0),
    ],
)
def test_the_configured_time_is_used_before_any_is_measured(start: ReplicaStart, expected_s: float) -> None:
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
    start = ReplicaStart(running=False, age_s=10.0, expected_in_s=100.0)
    assert least_s <= (times.next_in_s([start], 60.0) or 0.0) - 15.0 <= most_s


def test_a_few_estimates_are_kept_from_all_of_a_long_wait() -> None:
    log = EstimateLog()
    for second in range(1000):
        log.note("a", float(second), ReplicaStart(running=False, age_s=second, expected_in_s=2000.0 - second))
    came = log.started("a", 1000.0)
    assert len(came) == 8
    assert came[0] == Foretold(2000.0, 1000.0, 2000.0)
    assert [one.said_s for one in came] == sorted((one.said_s for one in came), reverse=True)
    assert came[-1].came_s < 250.0
    assert log.started("a", 1000.0) == ()


def test_jobs_that_are_not_waited_for_any_more_are_forgotten() -> None:
    log = EstimateLog()
    for name in ("a", "b"):
        log.note(name, 0.0, ReplicaStart(running=False, age_s=0.0, expected_in_s=10.0))
    log.keep({"b"})
    assert (log.started("a", 5.0), log.started("b", 5.0)) == ((), (Foretold(10.0, 5.0, 10.0),))


def running(job_id: int, start_s: float, partition: str = "gpu", limit_s: float | None = 100.0) -> QueuedJob:
    return QueuedJob(job_id, (partition,), 1, ready=False, start_s=start_s, limit_s=limit_s)


def waiting(
    job_id: int, priority: int, partitions: tuple[str, ...] = ("gpu",), *, ready: bool = True, nodes: int = 1
) -> QueuedJob:
    return QueuedJob(job_id, partitions, priority, ready=ready, start_s=None, nodes=nodes, limit_s=100.0)


@pytest.fixture
def line() -> WaitingLine:
    """It has seen many jobs take half of their time limits."""
    line = WaitingLine()
    line.take(0.0, [running(1000 + number, -49.0) for number in range(99)], set())
    line.take(1.0, (), set())
    return line


class TestWaitingLine:
    NODES = (running(1, 60.0), running(2, 80.0))
    """As others took half of their limits, they end at 110 and 130."""

    def test_the_turn_comes_when_those_before_have_started_and_taken_what_jobs_took_of_late(
        self, line: WaitingLine
    ) -> None:
        others = (waiting(20, 5), waiting(21, 9), waiting(22, 7), waiting(23, 7))
        line.take(100.0, (*self.NODES, *others), {21, 22, 23})
        assert [line.turn_s(job_id, 100.0) for job_id in (21, 22, 23)] == pytest.approx([10, 30, 60])
        assert line.turn_s(22, 105.0) == pytest.approx(25)
        assert line.turn_s(22, 500.0) == 5.0, "it should have started: at any moment"
        assert line.turn_s(20, 100.0) is None, "nobody asked for that one"

    def test_jobs_of_other_partitions_and_held_ones_are_not_before_it(self, line: WaitingLine) -> None:
        others = (waiting(20, 9, ("cpu",)), waiting(21, 9, ready=False), waiting(22, 9, ("cpu", "gpu")), waiting(23, 1))
        elsewhere = tuple(running(100 + second, float(second), "cpu") for second in range(90))
        line.take(100.0, (*self.NODES, *elsewhere, *others), {23})
        assert line.turn_s(23, 100.0) == pytest.approx(30)

    def test_a_job_of_several_nodes_waits_for_as_many_and_leaves_as_many(self, line: WaitingLine) -> None:
        line.take(100.0, (*self.NODES, waiting(20, 9, nodes=2), waiting(21, 5), waiting(22, 1)), {20, 21, 22})
        assert [line.turn_s(job_id, 100.0) for job_id in (20, 21, 22)] == pytest.approx([30, 80, 80])

    def test_a_node_that_was_in_use_a_moment_ago_is_free(self, line: WaitingLine) -> None:
        line.take(95.0, (*self.NODES, running(3, 50.0), waiting(20, 9), waiting(21, 5)), {21})
        line.take(100.0, (*self.NODES, waiting(20, 9), waiting(21, 5)), {21})
        assert line.turn_s(21, 100.0) == pytest.approx(10), "the first one takes it"
        line.take(161.0, (running(4, 151.0), waiting(21, 5)), {21})
        assert line.turn_s(21, 161.0) == pytest.approx(40), "one that was in use a minute ago may be down"

    def test_a_job_longer_than_all_before_may_end_at_any_time_until_its_limit(self, line: WaitingLine) -> None:
        line.take(100.0, (running(1, 20.0), waiting(20, 1)), {20})
        assert 5.0 <= (line.turn_s(20, 100.0) or 0.0) <= 20.0

    def test_before_a_job_has_ended_it_may_end_early_or_at_its_limit(self) -> None:
        line = WaitingLine()
        line.take(100.0, (running(1, 100.0, limit_s=1000.0), waiting(20, 1)), {20})
        assert 200.0 < (line.turn_s(20, 100.0) or 0.0) < 1000.0

    NOBODY_ENDS = (*(running(number, 0.0, limit_s=1000.0) for number in range(8)), waiting(20, 1))

    def test_where_jobs_come_near_their_limits_and_none_ends_early_they_are_expected_to_use_them(self) -> None:
        line = WaitingLine()
        for now_s in range(200, 801, 20):
            line.take(float(now_s), self.NOBODY_ENDS, {20})
        assert 100.0 < (line.turn_s(20, 800.0) or 0.0) <= 200.0

    def test_what_has_been_used_before_it_was_seen_tells_nothing_of_who_ended_before(self) -> None:
        line = WaitingLine()
        line.take(800.0, self.NOBODY_ENDS, {20})
        assert (line.turn_s(20, 800.0) or 0.0) < 100.0

    def test_who_may_have_ended_long_before_it_was_missed_teaches_nothing(self) -> None:
        told: list[float | None] = []
        for missed_s in (405.0, 900.0):
            line = WaitingLine()
            line.take(400.0, [running(number, 0.0, limit_s=1000.0) for number in range(1, 20)], set())
            line.take(missed_s, (), set())
            line.take(1000.0, (running(30, 999.0, limit_s=1000.0), waiting(20, 1)), {20})
            told.append(line.turn_s(20, 1000.0))
        assert told[0] == pytest.approx(404.0), "they ended at 405"
        assert told[1] != pytest.approx(899.0), "nobody knows when they ended"

    def test_a_clock_that_is_set_back_tells_nothing_of_jobs_that_run(self) -> None:
        jobs = (*(running(number, -50.0 - number, limit_s=3600.0) for number in range(400)), waiting(1000, 1))
        line, steady = WaitingLine(), WaitingLine()
        for now_s in (1000.0, 1005.0, 945.0):
            line.take(now_s, jobs, {1000})
        for now_s in (1000.0, 1005.0):
            steady.take(now_s, jobs, {1000})
        turn_s, steady_s = line.turn_s(1000, 945.0), steady.turn_s(1000, 1005.0)
        assert turn_s == pytest.approx(steady_s, abs=60)

    def test_a_node_in_use_at_a_time_before_the_clock_was_set_back_is_not_taken_for_free(
        self, line: WaitingLine
    ) -> None:
        line.take(1000.0, (*self.NODES, running(3, 50.0), waiting(20, 9)), {20})
        line.take(100.0, (*self.NODES, waiting(20, 9)), {20})
        assert line.turn_s(20, 100.0) == pytest.approx(10)

    @pytest.mark.parametrize(
        "jobs", [(), (waiting(5, 1),), (running(1, 3.0, limit_s=None), waiting(5, 1))], ids=["none", "idle", "no limit"]
    )
    def test_without_a_known_end_of_any_job_there_is_no_estimate(self, jobs: tuple[QueuedJob, ...]) -> None:
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
def test_the_estimate_that_was_more_accurate_is_used(foretold: Sequence[Foretold], left_s: float) -> None:
    times = StartTimes((), (15.0,), foretold)
    start = ReplicaStart(running=False, age_s=10.0, expected_in_s=100.0, turn_in_s=30.0)
    assert (times.next_in_s([start], 60.0) or 0.0) - 15.0 == pytest.approx(left_s, rel=0.02)
    assert slurm_knows_better(foretold) == (left_s > 40.0)
