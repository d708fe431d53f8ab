"""A place is lent once: what a young job used up on the place of an old one is missing from the old one's."""

from __future__ import annotations

from typing import Any

from sched_policy.model import Job, JobState
from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.lent_places import LentPlaces
from tests.sched_policy.builders import job
from tests.slurm_kit import record

NOW_S = 1_000.0
WEEK_S = 604_800.0


def waiting(job_id: int, scope: str = "ada", **fields: Any) -> Job:
    return job(job_id, scope=scope, peers="p", **fields)


def noted(places: LentPlaces, factors: dict[int, int], writes: dict[int, int], **more: SlurmJob) -> dict[int, int]:
    """A pass that finds jobs of one user with these site factors, and writes others; what is used up then."""
    records = {job_id: record(job_id, site_factor=factor) for job_id, factor in factors.items()}
    used = places.used(records.values(), NOW_S, WEEK_S)
    changes = [SetSiteFactor(job_id, factor) for job_id, factor in writes.items()]
    records |= {one.job_id: one for one in more.values()}
    places.note([waiting(job_id) for job_id in factors], records, used, changes)
    return places.used(records.values(), NOW_S, WEEK_S)


def test_a_start_on_a_lent_place_uses_it_up() -> None:
    places = LentPlaces()
    assert noted(places, {1: 0, 2: 0, 3: 0}, {1: -60, 2: 20, 3: 40}) == {}
    assert noted(places, {1: -60, 2: 20}, {}) == {1: -40}  # job 3 has started
    # Job 1 has the place that is left, 20 lower than the one that job 2 borrows from it.
    assert noted(places, {1: -60, 2: 20}, {}) == {1: -40}
    assert noted(places, {1: -60}, {}) == {1: -60}


def test_who_parks_a_job_lends_its_place_once() -> None:
    places = LentPlaces()
    noted(places, {1: 0, 2: 0}, {1: -100, 2: 100})
    used = noted(places, {1: -100, 3: 0}, {})
    assert used == {1: -100}  # the parked job stands where the young one would: there is nothing more to lend
    assert noted(places, {1: -100, 4: 0}, {}) == {1: -100}


def test_a_job_that_starts_on_its_own_place_or_a_lower_one_uses_up_nothing() -> None:
    places = LentPlaces()
    noted(places, {1: 0, 2: 0}, {1: -30, 2: 30})
    assert noted(places, {2: 30}, {}) == {}


def test_only_peers_pay() -> None:
    places = LentPlaces()
    records = {number: record(number, site_factor=factor) for number, factor in ((1, -30), (2, 30), (3, -30))}
    everybody = [waiting(1), waiting(2), waiting(3, "bob")]
    places.note(everybody, records, {}, [])
    del records[2]
    places.note([waiting(1), waiting(3, "bob")], records, {}, [])
    assert places.used(records.values(), NOW_S, WEEK_S) == {1: -30}


def test_each_task_that_leaves_its_array_counts_once() -> None:
    places = LentPlaces()
    noted(places, {1: -50, 2: 25}, {})
    task = record(7, state="RUNNING", array_job_id=2, site_factor=None)
    assert noted(places, {1: -50, 2: 25}, {}, task=task) == {1: -25}
    assert noted(places, {1: -50, 2: 25}, {}, task=task) == {1: -25}


def test_a_job_that_has_waited_for_too_long_has_its_place_back() -> None:
    places = LentPlaces()
    noted(places, {1: -30, 2: 30}, {})
    noted(places, {1: -30}, {})
    assert places.used([record(1, submit_s=0.0)], WEEK_S + 1, WEEK_S) == {}


def test_in_scope_partition_there_are_no_places() -> None:
    places = LentPlaces()
    for present in ((1, 2), (1,)):
        records = {number: record(number, site_factor=number) for number in present}
        places.note([waiting(number, "") for number in present], records, {}, [])
    assert places.used(records.values(), NOW_S, WEEK_S) == {}


def test_jobs_that_run_lend_nothing() -> None:
    places = LentPlaces()
    records = {1: record(1, site_factor=5), 2: record(2, state="RUNNING", site_factor=None)}
    places.note([waiting(1), waiting(2, state=JobState.RUNNING)], records, {}, [])
    places.note([waiting(1)], {1: records[1]}, {}, [])
    assert places.used(records.values(), NOW_S, WEEK_S) == {}
