"""Who may exchange places with whom, and how long a job has waited."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from slurm_plugin.observation.standing import FairShares, JobStanding, exceeds_limit, lane, last_wait_s, standing_of
from tests.sched_policy.builders import NOW_S
from tests.slurm_kit import record


def waiting(job_id: int = 1, **fields: Any) -> Any:
    return record(job_id, **{"natives": (500,), "account": "lab", "qos": "normal", **fields})


@pytest.mark.parametrize(
    "other",
    [
        {"partition": "long"},
        {"partition": "main,long"},
        {"qos": "high"},
        {"nice": 10},
        {"account": "guests"},
        {"reservation": "course"},
        {"natives": ()},
        {"site_factor": None},  # an operator has set its priority
        {"natives": (-1,)},  # its --nice is larger than the rest of its priority
    ],
)
def test_unequal_jobs_of_a_user_do_not_exchange_places(other: dict[str, Any]) -> None:
    usual = standing_of(waiting(), "user", 0)
    assert standing_of(waiting(2), "user", 0) == usual
    assert standing_of(waiting(2, **other), "user", 0).peers != usual.peers


def test_a_lease_of_ours_is_no_reservation() -> None:
    assert standing_of(waiting(reservation="explsched_1"), "user", 0) == standing_of(waiting(), "user", 0)


def test_scopes() -> None:
    assert standing_of(waiting(), "user", 30) == JobStanding("ada", standing_of(waiting(), "user", 0).peers, 530.0)
    assert standing_of(waiting(user="bob"), "account", 0) == standing_of(waiting(), "account", 0)
    assert standing_of(waiting(user="bob"), "user", 0) != standing_of(waiting(), "user", 0)
    assert standing_of(waiting(qos="high"), "partition", 30) == JobStanding()


@pytest.mark.parametrize("restarts", [0, 1])
def test_waiting_begins_when_a_job_may_start_and_ends_when_it_does(restarts: int) -> None:
    one = record(1, submit_s=NOW_S - 1000.0, restarts=restarts, start_s=NOW_S + 60.0)
    assert last_wait_s(replace(one, eligible_s=NOW_S - 2000.0), NOW_S) == 1000.0
    assert last_wait_s(replace(one, eligible_s=NOW_S - 400.0), NOW_S) == 400.0  # held before, or by its begin time
    assert last_wait_s(replace(one, eligible_s=NOW_S + 400.0), NOW_S) == 0.0
    assert last_wait_s(replace(one, eligible_s=None), NOW_S) == 0.0  # held
    runs = replace(one, state="RUNNING", start_s=NOW_S - 250.0, eligible_s=NOW_S - 1000.0)
    assert last_wait_s(runs, NOW_S) == 750.0


def test_a_delay_by_the_daemon_counts_as_waiting() -> None:
    rests = record(1, submit_s=NOW_S - 1000.0, restarts=1, eligible_s=NOW_S + 400.0)
    assert last_wait_s(rests, NOW_S, own_begin_s=0.0) == 1000.0
    assert last_wait_s(rests, NOW_S, own_begin_s=NOW_S - 300.0) == 300.0


def test_fair_share_is_known_of_associations_that_wait() -> None:
    waits = record(1, user="ada", account="a", fair_share=300)
    runs = record(2, user="ada", account="a", state="RUNNING", start_s=1.0)
    shares = FairShares([waits, runs, record(3, user="bob", account="b", state="RUNNING"), record(4, user="eve")])
    assert shares.of(runs) == 300
    assert shares.of(record(5, user="bob", account="b")) is None
    assert shares.of(record(6, user="ada", account="other")) is None
    assert shares.of(record(7, user="eve")) is None


@pytest.mark.parametrize("other", [{"qos": "high"}, {"reservation": "course"}, {"nice": 5}])
def test_a_lane_is_what_fair_share_alone_decides_in(other: dict[str, Any]) -> None:
    assert lane(record(1)) == lane(record(2, user="bob"))
    assert lane(record(1)) != lane(record(2, **other))


@pytest.mark.parametrize(
    ("reason", "may_fit"),
    [
        ("QOSMaxGRESPerUser", True),
        ("QOSGrpGRES", True),
        ("AssocGrpGRES", True),
        ("AssocGrpNodeLimit", True),
        ("QOSMaxCpuPerUserLimit", True),
        ("AssocGrpCPURunMinutesLimit", True),
        ("PartitionNodeLimit", True),
        ("MaxGRESPerAccount", True),
        ("MaxMemPerLimit", False),
        ("QOSMinGRES", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocMaxJobsLimit", False),
        ("QOSMaxWallDurationPerJobLimit", False),
        ("Resources", False),
        ("None", False),
    ],
)
def test_limits_below_which_a_smaller_job_might_be(reason: str, *, may_fit: bool) -> None:
    assert exceeds_limit(waiting(reason=reason)) == may_fit
    assert not exceeds_limit(waiting(reason=reason, state="RUNNING"))
