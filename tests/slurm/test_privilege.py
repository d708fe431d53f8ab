"""What the daemon's own user may do (AdminLevel=Admin), and what an ordinary user is refused, with slurmdbd."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cli.doctor_slurm import privilege
from slurm_plugin.client.changes import (
    CancelJob,
    Change,
    CreateReservation,
    DeleteReservation,
    RequeueJob,
    SetAdminComment,
    SetSiteFactor,
    StartAtOnce,
)
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from tests.slurm.jobs import empty, submit, until
from tests.slurm.users import OPERATOR, ORDINARY, STEERS, add_users, as_user

pytestmark = pytest.mark.slurm
REFUSED = re.compile("Invalid user id|[Pp]ermission|denied")  # Slurm's words, by version and command


@pytest.fixture(scope="module")
def site(needs_accounting: None, open_tmp: Path) -> Iterator[Cluster]:
    place = open_tmp / "privilege"
    cluster = up(ClusterSpec(nodes=1, accounting=True), place)
    add_users(cluster)
    yield cluster
    down(place)


@pytest.fixture
def waiting(site: Cluster) -> Iterator[int]:
    """A job of root that waits for another one of root, which has the number before."""
    jobs = [submit(site, "--gres=gpu:8", "--requeue") for _ in range(2)]
    client = CliClient(environment=site.env())
    until(lambda: sorted(job.state for job in client.jobs()) == ["PENDING", "RUNNING"], "one runs, one waits")
    yield jobs[1]
    empty(site)


def lease(job_id: int, user: str) -> CreateReservation:
    return CreateReservation(f"explsched_{job_id}", time.time() + 600, 2, ("n1",), (user,), "main")


def test_the_daemons_user_may_steer(site: Cluster, waiting: int) -> None:
    client = CliClient(environment=site.env())
    changes: list[Change] = [SetSiteFactor(waiting, 77), lease(waiting, "root"), SetAdminComment(waiting, "n=1")]
    assert as_user(STEERS, lambda: client.apply(changes)) == ()
    assert next(job.site_factor for job in client.jobs() if job.job_id == waiting) == 77
    assert [reservation.name for reservation in client.reservations()] == [f"explsched_{waiting}"]
    assert as_user(STEERS, lambda: client.apply([DeleteReservation(f"explsched_{waiting}")])) == ()
    assert as_user(STEERS, lambda: client.apply([RequeueJob(waiting - 1)])) == ()
    until(lambda: any(job.restarts for job in client.jobs()), "the running job is requeued")
    assert as_user(STEERS, lambda: client.apply([StartAtOnce(waiting - 1)])) == ()


def test_an_operator_is_refused_comments(site: Cluster, waiting: int) -> None:
    client = CliClient(environment=site.env())
    (failure,) = as_user(OPERATOR, lambda: client.apply([SetSiteFactor(waiting, 5), SetAdminComment(waiting, "n=1")]))
    assert (type(failure.change), bool(REFUSED.search(failure.message))) == (SetAdminComment, True)


def test_an_ordinary_user_is_refused_change_by_change(site: Cluster, waiting: int) -> None:
    client = CliClient(environment=site.env())
    changes: list[Change] = [
        SetSiteFactor(waiting, 5),
        lease(waiting, ORDINARY),
        RequeueJob(waiting),
        CancelJob(waiting),
    ]
    failures = as_user(ORDINARY, lambda: client.apply(changes))
    assert {type(failure.change) for failure in failures} == {type(change) for change in changes}
    assert all(REFUSED.search(failure.message) for failure in failures), failures
    jobs = {job.job_id: job for job in client.jobs()}
    assert (jobs[waiting].state, jobs[waiting].site_factor) == ("PENDING", 0)
    assert (jobs[waiting - 1].state, jobs[waiting - 1].restarts) == ("RUNNING", 0)
    assert client.reservations() == ()


def test_scontrol_alone_names_the_same_refusal(site: Cluster, waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.client.batch.find", lambda *_: None)
    client = CliClient(environment=site.env())
    (failure,) = as_user(ORDINARY, lambda: client.apply([SetSiteFactor(waiting, 5)]))
    assert REFUSED.search(failure.message)


@pytest.mark.parametrize(("user", "level"), [(STEERS, "ok"), (OPERATOR, "note"), (ORDINARY, "note"), ("root", "ok")])
def test_doctor_knows_who_may_steer(
    site: Cluster, waiting: int, user: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in site.env().items():
        monkeypatch.setenv(key, value)
    can = CliClient().capabilities()
    found = as_user(user, lambda: privilege(can))
    assert found.level == level, found
