"""`sexplsched plan --fresh` shows what a pass of the daemon would change, with everything that a pass considers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from slurm_plugin.cli.explain import plan
from slurm_plugin.client.batch import shown
from slurm_plugin.client.changes import RequeueJob, SetSiteFactor, SignalJob
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import AuditSection, Config, OrderSection, ProgressSection, StateSection
from slurm_plugin.observation.standing import Scope
from slurm_plugin.state.view import View
from slurm_plugin.steering.controller import Controller
from tests.slurm_kit import NODES, FakeSlurm, record

NOW_S = 10_000.0
WAITS = record(9, gpus=4, gpus_per_node=4, gres_per_node="gpu:4", reason="Resources", time_limit_s=60.0)


def config(tmp_path: Path, scope: Scope = "partition") -> Config:
    order = OrderSection(scope=scope, site_factor_file=tmp_path / "site_factors.json")
    spool, state = ProgressSection(spool=tmp_path), StateSection(directory=tmp_path / "state")
    return Config(
        policy="srsf", progress=spool, order=order, audit=AuditSection(file=tmp_path / "audit.jsonl"), state=state
    )


def full() -> tuple[SlurmJob, ...]:
    """Each node is held by a long job that may be preempted."""
    held = {"state": "RUNNING", "start_s": 100.0, "time_limit_s": 1e5, "requeues": True}
    held["comment"] = "explsched:checkpoint=USR1"
    sizes = {"gpus": 4, "gpus_per_node": 4, "gres_per_node": "gpu:4"}
    return tuple(
        record(10 + n, node_names=(node.name,), gpu_nodes=((node.name, node.gpus),), **sizes, **held)
        for n, node in enumerate(NODES)
    )


def fresh(
    slurm: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    now_s: float = NOW_S,
    scope: Scope = "partition",
) -> list[str]:
    own = config(tmp_path, scope)
    monkeypatch.setattr("slurm_plugin.config.load", lambda _path: own)
    monkeypatch.setattr("slurm_plugin.cli.cluster_state.look", lambda _path: View.of(own, slurm.look(), now_s))
    told = CliRunner().invoke(plan, ["--fresh", "--json"], catch_exceptions=False)
    found: list[dict[str, Any]] = json.loads(told.stdout)["changes"]
    return [one["text"] for one in found]


@pytest.mark.parametrize(
    ("jobs", "among_them"),
    [
        ((*full(), WAITS), "--signal=USR1"),
        ((replace(WAITS, comment="explsched:elastic=1-4&checkpoint=USR1", reason="AssocGrpGRES"),), "Gres=gpu:2"),
    ],
    ids=["a preemption", "a size that a limit allows"],
)
def test_a_fresh_plan_has_the_changes_of_a_pass(
    jobs: tuple[SlurmJob, ...], among_them: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [shown(change) for change in Controller(FakeSlurm(jobs), config(tmp_path)).decide(NOW_S).changes]
    assert fresh(FakeSlurm(jobs), tmp_path, monkeypatch) == wanted
    assert any(among_them in change for change in wanted)


def test_it_gives_back_the_priority_of_a_job_that_is_no_longer_steered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((WAITS,))
    daemon = Controller(slurm, config(tmp_path))
    assert SetSiteFactor(9, 0) not in daemon.reconcile(NOW_S).changes
    slurm.set(9, gpus=0, gpus_per_node=None, gres_per_node="", site_factor=500_000)
    assert fresh(slurm, tmp_path, monkeypatch) == [shown(SetSiteFactor(9, 0))]
    assert daemon.decide(NOW_S + 5).changes == (SetSiteFactor(9, 0),)


@pytest.mark.parametrize("left_to_slurm", [{}, {"gpus": 0, "gpus_per_node": None}])
def test_it_counts_a_position_that_has_been_used_up_as_the_daemon_does(
    left_to_slurm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may use it again; but nothing is taken from its job if that is no longer steered."""
    old = record(1, natives=(900,), priority=900, submit_s=NOW_S - 50, eligible_s=NOW_S - 50, time_limit_s=7200.0)
    slurm = FakeSlurm((old, replace(old, job_id=2, natives=(700,), priority=700, time_limit_s=60.0)))
    Controller(slurm, config(tmp_path, "user")).reconcile(NOW_S)
    slurm.set(1, **left_to_slurm)
    slurm.set(2, state="RUNNING", start_s=NOW_S, natives=(), site_factor=None)
    slurm.known[3] = replace(old, job_id=3, natives=(650,), priority=650, time_limit_s=60.0)
    slurm.known[4] = replace(old, job_id=4, user="bob", natives=(680,), priority=680)
    wanted = Controller(slurm, config(tmp_path, "user")).decide(NOW_S + 1).changes
    assert fresh(slurm, tmp_path, monkeypatch, NOW_S + 1, "user") == [shown(change) for change in wanted]
    ours = {one.job_id: one.site_factor for one in wanted if isinstance(one, SetSiteFactor)}
    assert ours == ({} if left_to_slurm else {1: -250, 3: 50})


def test_what_has_been_asked_to_leave_is_not_shown_as_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((*full(), WAITS))
    (asked,) = (
        one for one in Controller(slurm, config(tmp_path)).reconcile(NOW_S).changes if isinstance(one, SignalJob)
    )
    assert shown(asked) not in fresh(slurm, tmp_path, monkeypatch, NOW_S + 5)
    assert shown(RequeueJob(asked.job_id)) in fresh(slurm, tmp_path, monkeypatch, NOW_S + 125)


def test_a_preemption_of_hours_ago_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((*full(), WAITS))
    _ = Controller(slurm, config(tmp_path)).reconcile(NOW_S)
    later_s = NOW_S + 7200
    wanted = [shown(change) for change in Controller(slurm, config(tmp_path)).decide(later_s).changes]
    assert fresh(slurm, tmp_path, monkeypatch, later_s) == wanted
    assert not any("requeue" in change for change in wanted)


def test_where_no_daemon_has_recorded_its_priorities_none_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's own plugin may have set them."""
    slurm = FakeSlurm((WAITS, record(100, gpus=0, gpus_per_node=None, gres_per_node="", site_factor=5000)))
    assert [change for change in fresh(slurm, tmp_path, monkeypatch) if "JobId=100" in change] == []
