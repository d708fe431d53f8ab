"""Who makes room for whom: those that are clearly worse, consented and had their quantum, and as few as it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sched_policy.displace import Displace
from sched_policy.model import Exploration, GpuRequest, Job, JobState, Node, NodeGpus
from sched_policy.place import Consolidate
from sched_policy.plan import Ranking
from sched_policy.profile import AvailabilityProfile
from tests.sched_policy.builders import NOW_S, curve, job, nodes, running, snapshot

RULE = Displace(margin=1.5, least_share=0.05, quantum_s=600.0, most_at_once=8)
ONE_GPU = nodes(1, 1)


def holding(job_id: int, node: str = "n1", gpus: int = 1, **fields: Any) -> Job:
    """A job that runs and consented."""
    return running(job_id, node, gpus, **{"exploration": Exploration(checkpoint_signal="USR1"), **fields})


def preempted(
    worth: Mapping[int, float], *jobs: Job, on: tuple[Node, ...] = ONE_GPU, rule: Displace = RULE
) -> list[int]:
    """Ids of the jobs that make room if jobs have these scores and nothing starts by itself."""
    seen = snapshot(*jobs, on=on)
    ranking = Ranking(seen, np.array([worth[each.job_id] for each in seen.jobs]), str)
    waiting = [seen.jobs[row] for row in ranking.rows.tolist() if not seen.jobs[row].holds_gpus]
    blocked = [(each, each.array_tasks) for each in waiting]
    found = rule.preemptions(seen, ranking, blocked, AvailabilityProfile(seen), Consolidate())
    return [preemption.job_id for preemption in found]


@pytest.mark.parametrize(
    ("victim", "job_", "goes"),
    [(1.0, 1.4, False), (1.0, 1.6, True), (-90.0, -70.0, False), (-90.0, -50.0, True), (-90.0, -100.0, False)],
)
def test_only_for_a_job_that_is_worth_clearly_more(victim: float, job_: float, *, goes: bool) -> None:
    """Scores may be negative, as those of SRSF: minus the seconds that are left."""
    assert preempted({1: victim, 2: job_}, holding(1), job(2)) == ([1] if goes else [])


def test_only_within_its_partition() -> None:
    both = (replace(ONE_GPU[0], partitions=frozenset({"main", "debug"})),)
    assert preempted({1: 1.0, 2: 9.0}, holding(1, partition="debug"), job(2), on=both) == []


def test_among_jobs_that_are_worth_next_to_nothing_nobody_moves() -> None:
    best = running(3, "n2")
    on = nodes(2, 1)
    assert preempted({1: 0.1, 2: 0.4, 3: 10.0}, holding(1), job(2), best, on=on) == []
    assert preempted({1: 0.1, 2: 0.6, 3: 10.0}, holding(1), job(2), best, on=on) == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {"exploration": None},
        {"exploration": Exploration(sweep="digits")},
        {"is_spared": True},
        {"state": JobState.COMPLETING},
        {"asked_to_leave": True},
        {"ran_s": 500.0},
        {"ran_s": 5000.0, "first_report_s": NOW_S - 500.0},  # it took long to start
        {"ran_s": 5000.0, "first_report_s": None, "points": curve(0.5, 1.0, 100.0)},  # and is still at it
    ],
)
def test_a_job_is_left_alone(fields: dict[str, Any]) -> None:
    """There are two blocked jobs: GPUs that come free anyhow are for the first."""
    assert preempted({1: 0.0, 2: 9.0, 3: 8.0}, holding(1, **fields), job(2), job(3)) == []


def test_a_job_that_never_reports_has_its_quantum_from_its_start_on() -> None:
    assert preempted({1: 1.0, 2: 9.0}, holding(1, ran_s=700.0, first_report_s=None), job(2)) == [1]


@pytest.mark.parametrize("fields", [{"asked_to_leave": True}, {"state": JobState.COMPLETING}])
def test_room_that_is_being_made_is_for_the_best_that_is_blocked(fields: dict[str, Any]) -> None:
    leaves = holding(1, "n1", **fields)
    worth = {1: 0.0, 2: 1.0, 3: 9.0, 4: 8.0}
    on = nodes(2, 1)
    assert preempted(worth, leaves, holding(2, "n2"), job(3), on=on) == []
    assert preempted(worth, leaves, holding(2, "n2"), job(3), job(4), on=on) == [2]


def test_nobody_goes_for_a_job_of_which_it_is_not_known_that_it_would_start() -> None:
    assert preempted({1: 1.0, 2: 9.0}, holding(1), job(2, may_displace=False)) == []
    assert preempted({1: 1.0, 2: 9.0, 3: 8.0}, holding(1), job(2, may_displace=False), job(3)) == [1]


def test_as_few_as_it_takes() -> None:
    """The worst is tried first, but is on a node where it would not help."""
    gang = job(4, request=GpuRequest.on_each(1, 4))
    jobs = (holding(1, "n1", 1), running(2, "n1", 3), holding(3, "n2", 4), gang)
    assert preempted({1: 0.1, 2: 0.2, 3: 1.0, 4: 9.0}, *jobs, on=nodes(2, 4)) == [3]


def test_nobody_goes_for_a_gang_that_would_not_fit_all_the_same() -> None:
    gang = job(3, request=GpuRequest.on_each(2, 1))
    assert preempted({1: 1.0, 2: 1.0, 3: 9.0}, holding(1, "n1"), running(2, "n2"), gang, on=nodes(2, 1)) == []


def test_no_more_than_so_many_at_once() -> None:
    victims = [holding(number, f"n{number}") for number in (1, 2, 3)]
    worth = {1: 1.0, 2: 1.1, 3: 1.2, 9: 9.0}
    array = job(9, array_tasks=3)
    assert preempted(worth, *victims, array, on=nodes(3, 1)) == [1, 2, 3]
    assert preempted(worth, *victims, array, on=nodes(3, 1), rule=replace(RULE, most_at_once=2)) == [1, 2]


def test_a_job_that_some_nodes_suit_displaces_only_what_runs_on_those() -> None:
    on = (Node("n1", 1, frozenset({"main"})), Node("n2", 1, frozenset({"main", "main [a100]"})))
    picky = job(3, partition="main [a100]")
    assert preempted({1: 0.1, 2: 0.2, 3: 9.0}, holding(1, "n1"), holding(2, "n2"), picky, on=on) == [2]
    assert preempted({1: 0.1, 2: 0.2, 3: 9.0}, holding(1, "n1"), holding(2, "n2"), job(3), on=on) == [1]
    elsewhere = holding(2, "n2", partition="debug")
    assert preempted({1: 0.1, 2: 0.2, 3: 9.0}, holding(1, "n1"), elsewhere, picky, on=on) == []
    across = holding(2, "n2", 2, allocation=(NodeGpus("n1", 1), NodeGpus("n2", 1)))
    assert preempted({2: 0.2, 3: 9.0}, across, picky, on=on) == []
