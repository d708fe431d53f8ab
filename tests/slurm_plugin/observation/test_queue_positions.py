"""A position counts once: what a young job used up of an old one's is missing from the old one's."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_plugin.client.changes import RequeueJob
from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.queue_positions import QueuePositions
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.places import place_changes
from tests.slurm_kit import record

NOW_S = 1_000.0
WEEK_S = 604_800.0
ALL = 1_000_000


def waiting(job_id: int, native: int, user: str = "ada", **fields: Any) -> SlurmJob:
    """A job as Slurm shows it before anybody has changed it."""
    base = {"user": user, "natives": (native,), "priority": native, "site_factor": 0, "submit_s": float(job_id)}
    return record(job_id, **{**base, "eligible_s": float(job_id), "fair_share": 0, **fields})


def running(job: SlurmJob) -> SlurmJob:
    return replace(job, state="RUNNING", start_s=NOW_S, natives=(), site_factor=None, fair_share=None)


def look(
    jobs: Sequence[SlurmJob], base: Mapping[int, int], others: Mapping[int, int] = MappingProxyType({})
) -> Observation:
    remembered = Remembered(others_factors=others, base_factors=base)
    return observe(ClusterRecords((), tuple(jobs), ()), ProgressSpool(Path("/nowhere")), NOW_S, remembered=remembered)


def a_pass(
    places: QueuePositions,
    jobs: Sequence[SlurmJob],
    best: Sequence[int],
    most: int = ALL,
    requeued: Mapping[int, int | None] | None = None,
    others: Mapping[int, int] | None = None,
) -> list[SlurmJob]:
    """What a daemon does in a pass whose policy wants jobs in this order; the jobs as Slurm shows them afterwards.

    `requeued` make room, each for a waiting job; `others` are the parts of site factors that others have set.
    """
    going, theirs = requeued or {}, others or {}
    places.take_in({job.job_id: job for job in jobs})
    seen = look(jobs, places.base_factors(jobs, theirs, NOW_S, WEEK_S), theirs)
    changes = place_changes(seen, best, most)
    places.note(best, seen, (*changes, *map(RequeueJob, going)), most, going)
    factors = {change.job_id: change.site_factor for change in changes}
    return [_with_factor(job, factors.get(job.job_id)) for job in jobs]


def _with_factor(job: SlurmJob, factor: int | None) -> SlurmJob:
    return job if factor is None else replace(job, site_factor=factor, priority=job.priority_with(factor))


def used(places: QueuePositions, jobs: Sequence[SlurmJob]) -> dict[int, int]:
    places.take_in({job.job_id: job for job in jobs})
    return places.used(jobs, NOW_S, WEEK_S)


def without(jobs: Sequence[SlurmJob], *ids: int) -> list[SlurmJob]:
    return [job for job in jobs if job.job_id not in ids]


def test_a_start_on_a_lent_place_uses_it_up() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 800), waiting(3, 700)], [3, 2, 1])
    assert used(places, jobs) == {}
    assert used(places, without(jobs, 3)) == {1: -200}  # left are the places of 800 and 700
    jobs = a_pass(places, without(jobs, 3), [2, 1])
    assert [job.priority for job in jobs] == [700, 800]
    assert used(places, without(jobs, 2)) == {1: -200}


def test_it_counts_also_where_nobody_else_stands_between() -> None:
    """Then a write is saved: the young job is raised above the old one, which keeps what it has."""
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 700)], [2, 1])
    assert [job.site_factor for job in jobs] == [0, 210]
    assert used(places, without(jobs, 2)) == {1: -200}


def test_who_parks_a_job_lends_its_place_once() -> None:
    places = QueuePositions()
    others = waiting(9, 800, "bob")
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 700), others], [2, 1, 9])
    for young in (3, 4, 5):  # each is preferred to the parked job and starts as soon as it can
        jobs = a_pass(places, [*without(jobs, young - 1), waiting(young, 690)], [young, 1, 9])
        at = {job.job_id: job.priority for job in jobs}
        assert at[young] < at[9]


def test_a_job_that_starts_on_its_own_place_or_a_lower_one_uses_up_nothing() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 700)], [2, 1])
    assert used(places, without(jobs, 1)) == {}


def test_who_would_have_started_on_its_own_place_gives_back_what_it_was_charged() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 800), waiting(3, 700)], [3, 2, 1])
    assert used(places, without(jobs, 3)) == {1: -200}
    assert places.charged == {3}
    places.give_back({3})
    assert places.used(jobs, NOW_S, WEEK_S) == {}
    jobs = a_pass(places, without(jobs, 3), [2, 1])
    assert used(places, without(jobs, 2)) == {1: -100}  # the place is lent all the same, once


def test_of_a_chain_no_more_is_given_back_than_was_charged() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 800), waiting(3, 700)], [3, 1, 2])
    assert used(places, without(jobs, 1, 3)) == {2: -100}
    assert places.charged == {3}
    places.give_back({3})
    assert places.used(jobs, NOW_S, WEEK_S) == {}


def test_a_lender_that_has_left_from_another_place_passes_its_debt_on() -> None:
    places = QueuePositions()
    best = [3, 1, 2]  # the third on the first's place, the first on the second's, the second on the third's
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 800), waiting(3, 700)], best)
    assert used(places, without(jobs, 1, 3)) == {2: -100}  # two have started from the two best places


def test_a_job_for_which_nothing_has_been_written_yet_uses_up_nothing() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 800, "bob"), waiting(3, 700)], [3, 1, 2], most=0)
    assert used(places, without(jobs, 3)) == {}


def test_only_peers_pay() -> None:
    places = QueuePositions()
    jobs = [waiting(1, 900), waiting(2, 850, "bob"), waiting(3, 700), waiting(4, 890, nice=3)]
    assert used(places, without(a_pass(places, jobs, [3, 1, 4, 2]), 3)) == {1: -200}


def test_each_task_that_leaves_its_array_counts_once() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 700, array_tasks=3)], [2, 1])
    task = running(waiting(7, 700, array_job_id=2))
    for _ in range(3):
        assert used(places, [*jobs, task]) == {1: -200}
        jobs = without(a_pass(places, [*jobs, task], [2, 1]), 7)
    second = running(waiting(8, 700, array_job_id=2))
    assert used(places, [*jobs, task, second]) == {1: -200}  # the places that are left are the same


def test_a_task_that_ran_before_its_array_was_lent_a_place_uses_up_nothing() -> None:
    places = QueuePositions()
    task = running(waiting(7, 700, array_job_id=2))
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 700, array_tasks=3, array_job_id=2), task], [2, 1])
    assert used(places, jobs) == {}
    assert used(places, [*jobs, running(waiting(8, 700, array_job_id=2))]) == {1: -200}


def test_a_job_that_has_waited_for_too_long_has_its_place_back() -> None:
    places = QueuePositions()
    jobs = without(a_pass(places, [waiting(1, 900), waiting(2, 700)], [2, 1]), 2)
    assert used(places, jobs) == {1: -200}
    assert places.used(jobs, WEEK_S + 2, WEEK_S) == {}


def test_what_starts_while_the_daemon_is_away_counts(tmp_path: Path) -> None:
    file = tmp_path / "lent_places.json"
    before = QueuePositions(file)
    jobs = a_pass(before, [waiting(1, 900), waiting(2, 700)], [2, 1])
    before.save()
    jobs = without(jobs, 2)
    after = QueuePositions(file)
    assert used(after, jobs) == {1: -200}
    after.save()
    assert used(QueuePositions(file), jobs) == {1: -200}  # once, however often the daemon starts


def test_a_pass_at_its_cap_lends_no_positions_that_it_has_not_written_when_one_is_refused() -> None:
    natives = {1: ("ada", 9000), 3: ("ada", 7000), 2: ("bob", 8000), 6: ("bob", 5500), 4: ("cy", 6000), 5: ("cy", 5000)}
    jobs = [waiting(job_id, native, user) for job_id, (user, native) in natives.items()]
    places, best = QueuePositions(), [3, 1, 2, 5, 4, 6]
    places.take_in({job.job_id: job for job in jobs})
    seen = look(jobs, {})
    changes = place_changes(seen, best, 1)
    assert [change.job_id for change in changes] == [3]
    places.note(best, seen, changes, 1, {})
    places.note(best, seen, changes, 1, {}, frozenset({3}))
    assert used(places, without(jobs, 5)) == {}


def test_a_job_that_ran_when_a_file_of_an_earlier_release_was_read_keeps_its_position(tmp_path: Path) -> None:
    file = tmp_path / "lent_places.json"
    file.write_text('{"used": {}, "loans": {}, "counted": [7], "began": {"7": 1200}, "swaps": {}}')
    places = QueuePositions(file)
    job = waiting(7, 1200)
    a_pass(places, [running(job)], [], requeued={7: None})
    assert used(places, [replace(job, natives=(300,), priority=300, restarts=1)]) == {7: 900}


@pytest.mark.parametrize("text", ["", "[1]", '{"used": {"1": "x"}}', '{"loans": {"1": ["a", 3]}}', "\\0"])
def test_a_broken_file_is_no_file(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "lent_places.json"
    file.write_text(text)
    assert used(QueuePositions(file), [waiting(1, 900)]) == {}
    assert str(file) in caplog.text


def test_a_directory_that_is_gone_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = QueuePositions(tmp_path / "absent" / "lent_places.json")
    for best in ([2, 1], [1, 2], [2, 1]):
        a_pass(places, [waiting(1, 900), waiting(2, 700)], best)
        places.save()
    assert caplog.text.count("may use them once more") == 1


def test_a_job_that_is_requeued_may_use_up_a_place_again() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [waiting(1, 900), waiting(2, 700)], [2, 1])
    jobs = a_pass(places, [jobs[0], running(jobs[1])], [1, 2])
    assert used(places, jobs) == {1: -200}
    again = a_pass(places, [waiting(1, 900, site_factor=-200), waiting(2, 500)], [2, 1])
    assert used(places, [again[0], running(again[1])]) == {1: -400}


def consenting(job: SlurmJob) -> SlurmJob:
    return replace(job, comment="explsched:sweep=s&checkpoint=USR1", requeues=True)


def test_a_job_that_made_room_waits_on_the_place_of_the_job_that_runs_in_its_stead() -> None:
    places = QueuePositions()
    jobs = a_pass(places, [running(consenting(waiting(1, 900))), waiting(2, 700)], [2, 1], requeued={1: 2})
    back = consenting(waiting(1, 100, restarts=1))  # Slurm has taken its age
    assert used(places, [back, jobs[1]]) == {}  # the other one stands there yet
    assert used(places, [back, running(jobs[1])]) == {1: 600}
    assert used(places, [replace(back, natives=(150,)), running(jobs[1])]) == {1: 600}  # both would have aged


def test_a_job_that_slurm_does_not_requeue_has_cleared_no_place() -> None:
    """Its owner may requeue it later, which earns nobody a place."""
    places = QueuePositions()
    jobs = a_pass(places, [running(consenting(waiting(1, 900))), waiting(2, 700)], [2, 1], requeued={1: 2})
    jobs = a_pass(places, jobs, [2, 1])  # it still runs, in the same run
    assert used(places, [consenting(waiting(1, 100, restarts=1)), running(jobs[1])]) == {}


def test_a_job_that_has_started_again_at_once_keeps_no_place_for_later() -> None:
    """Slurm shows no priority of a job that waits for its begin time, and the next pass may see it run again."""
    places = QueuePositions()
    a_pass(places, [consenting(waiting(1, 900))], [1])
    a_pass(places, [running(consenting(waiting(1, 900)))], [1], requeued={1: None})
    again = consenting(waiting(1, 100, restarts=1, natives=(), fair_share=None))
    assert used(places, [again]) == {}
    assert used(places, [running(again)]) == {}
    assert used(places, [consenting(waiting(1, 50, restarts=2))]) == {}  # its owner has requeued it


def test_a_job_whose_requeue_is_repeated_has_cleared_its_place() -> None:
    places = QueuePositions()
    jobs = [running(consenting(waiting(1, 900))), waiting(2, 700)]
    for _ in range(2):
        jobs = a_pass(places, jobs, [2, 1], requeued={1: 2})
    assert used(places, [consenting(waiting(1, 100, restarts=1)), running(jobs[1])]) == {1: 600}


def test_it_gets_the_place_from_which_the_other_started() -> None:
    """The best place was lent: who lent it has paid with his own, and the two that are left are those there were."""
    places = QueuePositions()
    jobs = [running(consenting(waiting(1, 0))), waiting(2, 700), waiting(3, 800)]
    jobs = a_pass(places, jobs, [2, 3, 1], requeued={1: 2})
    after = used(places, [consenting(waiting(1, 100, restarts=1)), running(jobs[1]), jobs[2]])
    assert after == {1: 700, 3: -100}


def test_who_makes_room_for_nobody_in_particular_keeps_the_place_from_which_it_started() -> None:
    places = QueuePositions()
    a_pass(places, [consenting(waiting(1, 900))], [1])
    jobs = [running(consenting(waiting(1, 900)))]
    assert used(places, jobs) == {}
    a_pass(places, jobs, [1], requeued={1: None})
    assert used(places, [consenting(waiting(1, 100, restarts=1))]) == {1: 800}


@pytest.mark.parametrize("beneficiary", [None, 2])
@pytest.mark.parametrize("share", [300, 400, 450])
def test_who_made_room_has_the_fair_share_of_now(share: int, beneficiary: int | None) -> None:
    """What its owner has used in the meantime counts, or nothing would ever lower the priority of its long jobs."""
    places, other = QueuePositions(), waiting(2, 900, fair_share=400)
    a_pass(places, [consenting(waiting(1, 900, fair_share=400)), other], [1, 2])
    jobs = [running(consenting(waiting(1, 900))), other]
    a_pass(places, jobs, [1, 2], requeued={1: beneficiary})
    back = consenting(waiting(1, share + 100, fair_share=share, restarts=1))  # Slurm has taken 400 of its age
    assert used(places, [back, running(other)]) == {1: 400}


@pytest.mark.parametrize("now", [0, 500, 900])
def test_a_site_factor_that_others_have_set_is_no_part_of_a_freed_place(now: int) -> None:
    """Slurm keeps it, so it would be there twice, and once more with each requeue."""
    places = QueuePositions()
    a_pass(places, [consenting(waiting(1, 900, site_factor=500))], [1], others={1: 500})
    a_pass(places, [running(consenting(waiting(1, 900)))], [1], requeued={1: None})
    assert used(places, [consenting(waiting(1, 500, site_factor=now, restarts=1))]) == {1: 400}


def test_for_a_job_of_another_kind_it_waits_no_higher_than_where_it_stood_with_the_fair_share_of_now() -> None:
    places, other = QueuePositions(), waiting(2, 5000, qos="high", fair_share=100)
    a_pass(places, [consenting(waiting(1, 900, fair_share=400)), other], [1, 2])
    jobs = [running(consenting(waiting(1, 900))), other]
    a_pass(places, jobs, [2, 1], requeued={1: 2})
    assert used(places, [consenting(waiting(1, 200, fair_share=100, restarts=1)), running(other)]) == {1: 400}


def test_a_priority_that_its_owner_lowers_meanwhile_earns_no_place() -> None:
    """Users may set lower priorities, which site factors do not change, and give them up again."""
    lowered: dict[str, Any] = {"fair_share": None, "site_factor": None}
    places = QueuePositions()
    a_pass(places, [consenting(waiting(1, 900, fair_share=400))], [1])
    jobs = [running(consenting(waiting(1, 900)))]
    assert used(places, jobs) == {}
    a_pass(places, jobs, [1], requeued={1: None})
    assert used(places, [consenting(waiting(1, 2, restarts=1, **lowered))]) == {}
    assert used(places, [consenting(waiting(1, 400, fair_share=300, restarts=1))]) == {1: 400}
    a_pass(places, [consenting(waiting(1, 800, **lowered))], [1])
    a_pass(places, jobs, [1], requeued={1: None})
    assert used(places, [consenting(waiting(1, 400, fair_share=300, restarts=1))]) == {}


def test_a_requeue_that_an_earlier_release_has_noted_keeps_its_position(tmp_path: Path) -> None:
    """It wrote no fair shares."""
    kind = "\\u001fmain\\u001f\\u001f0"
    stood, swaps = f'{{"7": [1200, "{kind}"]}}', f'{{"8": [null, 1200, 0, "{kind}"]}}'
    file = tmp_path / "lent_places.json"
    file.write_text(f'{{"used": {{}}, "loans": {{}}, "counted": [7], "stood": {stood}, "swaps": {swaps}}}')
    places = QueuePositions(file)
    back = [waiting(job_id, 300, fair_share=50, restarts=1) for job_id in (7, 8)]
    a_pass(places, [running(waiting(7, 1200)), back[1]], [], requeued={7: None})
    assert used(places, back) == {7: 900, 8: 900}


CHEAPER = [{"nice": 80}, {"partition": "low"}, {"qos": "low"}, {"account": "guests"}]
"""What a job's owner can change at any time; each is worth 80 less here."""


@pytest.mark.parametrize("change", CHEAPER)
def test_a_freed_place_is_no_higher_for_a_job_that_is_changed_while_it_leaves(change: dict[str, Any]) -> None:
    """Its owner would take that back, and would keep what it had been given for it."""
    places = QueuePositions()
    a_pass(places, [consenting(waiting(1, 900))], [1])
    jobs = [running(consenting(waiting(1, 900)))]
    assert used(places, jobs) == {}
    a_pass(places, jobs, [1], requeued={1: None})
    assert used(places, [consenting(waiting(1, 20, restarts=1, **change))]) == {}
    assert used(places, [consenting(waiting(1, 100, restarts=1))]) == {1: 800}
    assert used(places, [consenting(waiting(1, 20, restarts=1, **change))]) == {1: 800}  # it is 80 lower


@pytest.mark.parametrize("change", CHEAPER)
def test_a_job_that_was_changed_while_it_ran_has_the_place_of_its_new_kind_as_such(change: dict[str, Any]) -> None:
    places = QueuePositions()
    a_pass(places, [consenting(waiting(1, 20, **change))], [1])
    jobs = [running(consenting(waiting(1, 900))), waiting(2, 700)]
    assert used(places, jobs) == {}
    a_pass(places, jobs, [2, 1], requeued={1: 2})
    assert used(places, [consenting(waiting(1, 20, restarts=1, **change)), running(jobs[1])]) == {}
    assert used(places, [consenting(waiting(1, 100, restarts=1)), running(jobs[1])]) == {1: 600}


@pytest.mark.parametrize("change", [{"partition": "long"}, {"qos": "high"}, {"nice": 7}, {"state": "CANCELLED"}])
def test_a_place_that_is_no_peers_or_was_given_up_is_not_inherited(change: dict[str, Any]) -> None:
    places = QueuePositions()
    other = waiting(2, 700, **{key: value for key, value in change.items() if key != "state"})
    a_pass(places, [running(consenting(waiting(1, 900))), other], [2, 1], requeued={1: 2})
    assert used(places, [consenting(waiting(1, 100, restarts=1)), replace(running(other), **change)]) == {}


@pytest.mark.parametrize(("native", "waits_at"), [(700, 700), (5000, 900)])
@pytest.mark.parametrize("change", [{"partition": "long"}, {"qos": "high"}, {"nice": 7}])
def test_for_a_job_of_another_kind_it_waits_no_higher_than_it_stood_itself(
    change: dict[str, Any], native: int, waits_at: int
) -> None:
    """Without a place its owner would pay for the preemption with the age that the job had when it started."""
    places, other = QueuePositions(), waiting(2, native, **change)
    a_pass(places, [consenting(waiting(1, 900)), other], [1, 2])
    a_pass(places, [running(consenting(waiting(1, 900))), other], [2, 1])
    a_pass(places, [running(consenting(waiting(1, 900))), other], [2, 1], requeued={1: 2})
    back = consenting(waiting(1, 100, restarts=1))
    assert used(places, [back, running(other)]) == {1: waits_at - 100}


def test_another_users_job_leaves_no_place() -> None:
    places, other = QueuePositions(), waiting(2, 700, user="bob")
    a_pass(places, [consenting(waiting(1, 900)), other], [1, 2])
    a_pass(places, [running(consenting(waiting(1, 900))), other], [2, 1], requeued={1: 2})
    assert used(places, [consenting(waiting(1, 100, restarts=1)), running(other)]) == {}


def test_who_makes_room_stands_no_lower_than_slurm_puts_it() -> None:
    places, other = QueuePositions(), waiting(2, 50, nice=7)
    a_pass(places, [consenting(waiting(1, 900)), other], [1, 2])
    a_pass(places, [running(consenting(waiting(1, 900))), other], [2, 1], requeued={1: 2})
    assert used(places, [consenting(waiting(1, 100, restarts=1)), running(other)]) == {}


def test_a_job_that_its_owner_requeues_begins_anew_as_with_slurm() -> None:
    places = QueuePositions()
    a_pass(places, [consenting(waiting(1, 900))], [1])
    a_pass(places, [running(consenting(waiting(1, 900)))], [1])
    assert used(places, [consenting(waiting(1, 100, restarts=1))]) == {}


def test_whatever_starts_the_places_that_are_left_are_slurms() -> None:
    """Slurm alone starts jobs that are alike in order of submission: the youngest are left, as many as here."""
    chance = random.Random(5)
    for _ in range(50):
        places, jobs, first = QueuePositions(), [], 0
        natives: dict[int, int] = {}
        for number in range(1, 40):
            natives[number] = 10_000 - 10 * number
            jobs.append(waiting(number, natives[number], submit_s=float(number)))
            best = [job.job_id for job in jobs]
            chance.shuffle(best)
            jobs = a_pass(places, jobs, best)
            starting = chance.sample(best, chance.randint(0, len(best)))
            in_order = sorted(jobs, key=lambda job: -job.priority)[: len(starting)]  # Slurm takes the first
            jobs = without(jobs, *(job.job_id for job in in_order))
            first += len(in_order)
            left = used(places, jobs)
            there = sorted((natives[job.job_id] + left.get(job.job_id, 0) for job in jobs), reverse=True)
            assert there == [natives[n] for n in range(first + 1, number + 1)]
