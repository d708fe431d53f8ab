"""From the order of a plan to site factors: the right order with few writes."""

import itertools
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.steering.order import OrderLimits, order_changes, relabel
from tests.slurm_kit import record

LIMITS = OrderLimits(highest=1_000_000, depth=100, max_per_pass=20)


def written(jobs: Sequence[SlurmJob], changes: Sequence[SetSiteFactor]) -> list[SlurmJob]:
    """The jobs as Slurm shows them afterwards."""
    factors = {job.job_id: job.site_factor for job in jobs} | {change.job_id: change.site_factor for change in changes}
    return [record(job.job_id, site_factor=factors[job.job_id], partition=job.partition) for job in jobs]


def waiting(count: int, first: int = 1, factor: int = 0, partition: str = "main") -> list[SlurmJob]:
    return [record(first + i, site_factor=factor, partition=partition) for i in range(count)]


def as_slurm_orders(jobs: Sequence[SlurmJob]) -> list[int]:
    """Job ids by priority; Slurm has no priority below 1, and takes the older of equal ones."""
    return [job.job_id for job in sorted(jobs, key=lambda job: (-max(1, job.site_factor or 0), job.job_id))]


def settled(jobs: list[SlurmJob], limits: OrderLimits = LIMITS) -> tuple[list[SlurmJob], int]:
    """The jobs when a pass finds nothing to change any more, and how many passes that took."""
    passes = 0
    while changes := order_changes(jobs, limits):
        assert len(changes) <= limits.max_per_pass
        jobs, passes = written(jobs, changes), passes + 1
        assert passes < 1000
    return jobs, passes


@given(st.lists(st.one_of(st.none(), st.integers(-100, 1100)), max_size=40))
def test_labels_fall_strictly_within_the_range(current: list[int | None]) -> None:
    labels = relabel(current, 1000)
    assert all(a > b for a, b in itertools.pairwise(labels))
    assert all(0 < label < 1000 for label in labels)


@given(st.lists(st.one_of(st.none(), st.integers(-10, 60)), min_size=1, max_size=45))
def test_labels_fall_strictly_even_if_there_are_hardly_enough(current: list[int | None]) -> None:
    labels = relabel(current, 46)
    assert all(a > b for a, b in itertools.pairwise(labels))
    assert all(0 < label < 46 for label in labels)


def test_who_stands_too_high_goes_down_before_newcomers_get_their_place() -> None:
    too_high = record(9, site_factor=900)
    jobs = [*waiting(4), record(5, site_factor=300), record(6, site_factor=200), record(7, site_factor=100), too_high]
    (first,) = order_changes(jobs, OrderLimits(highest=1000, depth=100, max_per_pass=1))
    assert first.job_id == 9
    assert first.site_factor < 100


def test_a_right_order_changes_nothing() -> None:
    assert relabel([400, 70, 30, 20], 500) == [400, 70, 30, 20]


def test_one_job_moving_to_the_front_is_one_change() -> None:
    current = [20, 400, 70, 30]  # in wanted order; only the first stands wrong
    assert [old != new for old, new in zip(current, relabel(current, 500), strict=True)] == [True, False, False, False]


def test_more_jobs_than_labels_share_the_lowest() -> None:
    labels = relabel([None] * 50, 20)
    assert labels == sorted(labels, reverse=True)
    assert min(labels) == 1


def test_a_queue_that_grows_and_shrinks_costs_few_writes() -> None:
    """First come, first served, for a long time: every new job needs a label, few others a new one."""
    labels: list[int | None] = list(relabel([None] * 100, 10_000))
    writes = 0
    for _ in range(2000):
        wanted = relabel([*labels[1:], None], 10_000)
        writes += sum(old != new for old, new in zip(labels[1:], wanted, strict=False)) + 1
        labels = list(wanted)
    assert writes <= 2000 * 2


def test_jobs_behind_the_depth_of_their_partition_are_left_alone() -> None:
    jobs = [*waiting(150), *waiting(10, first=500, partition="debug")]
    after, _ = settled(jobs)
    labelled = [job.job_id for job in after if job.site_factor]
    assert labelled == [*range(1, 101), *range(500, 510)]
    assert as_slurm_orders(after)[:110] == labelled


def test_a_job_that_falls_behind_loses_its_label() -> None:
    jobs, _ = settled(waiting(100))
    after, passes = settled([record(500, site_factor=0), *jobs])
    assert passes == 1
    assert as_slurm_orders(after)[:2] == [500, 1]
    assert [job.job_id for job in after if not job.site_factor] == [100]


def test_a_pass_writes_the_head_first() -> None:
    jobs = waiting(100)
    after = written(jobs, order_changes(jobs, LIMITS))
    assert as_slurm_orders(after)[:20] == list(range(1, 21))


def test_users_take_turns_where_a_pass_cannot_write_all() -> None:
    jobs = [*waiting(50), *(record(job_id, user="bob") for job_id in (51, 52))]
    changes = order_changes(jobs, LIMITS)
    assert {change.job_id for change in changes} == {*range(1, 19), 51, 52}


def test_who_stands_too_high_goes_in_the_first_pass() -> None:
    jobs, _ = settled(waiting(60))
    turned = [*jobs[1:], jobs[0]]  # the first is wanted last
    (change,) = order_changes(turned, LIMITS)
    assert change.job_id == 1
    upside_down = jobs[::-1]
    (first, *_) = order_changes(upside_down, LIMITS)
    assert first.job_id in (1, 60)


@given(st.integers(0, 1000))
def test_any_new_order_is_reached(seed: int) -> None:
    jobs, _ = settled(waiting(60))
    random.Random(seed).shuffle(jobs)
    after, passes = settled(jobs)
    assert as_slurm_orders(after) == [job.job_id for job in jobs]
    assert passes <= 4


def test_unknown_site_factors_are_written() -> None:
    (change,) = order_changes([record(1, site_factor=None)], LIMITS)
    assert change.site_factor > 0
