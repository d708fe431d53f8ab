"""Jobs that answer the checkpoint signal by requeueing themselves, as submitit's and Lightning's do."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from explsched.preemption_record import Interruption, PreemptionRecord, read
from sched_policy.plan import Plan, Preemption
from slurm_plugin.client.changes import Change, SetAdminComment, SignalJob
from slurm_plugin.config import PreemptionSection
from tests.slurm_kit import NODES, FakeSlurm
from tests.slurm_plugin.steering.test_controller import NOW_S, Fixed, asking, configured, controller, holding, saves

GRACE_S = PreemptionSection().grace_s
RUN_S = 7200
"""How long job 5 has run on its four GPUs when it is asked to leave for job 7."""


class Site:
    """The fake Slurm and its daemon, which has just asked job 5 to leave; anew by each `restart` of the daemon."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **slurm: Any) -> None:
        told = {"comment": "explsched:sweep=d&checkpoint=USR1", "uid": os.geteuid()}
        self.slurm = FakeSlurm((holding(5, submit_s=50.0, start_s=NOW_S - RUN_S, **told), asking(7)), **slurm)
        self._begin = partial(controller, self.slurm, tmp_path, monkeypatch)
        self.daemon = self._begin(Plan(preemptions=(Preemption(5, "why", 7),)))
        self.daemon.reconcile(NOW_S)
        assert self.slurm.carried_out == [SignalJob(5, "USR1")]
        monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(Plan()))
        self.daemon.reconfigure(configured(tmp_path))

    def restart(self) -> None:
        self.daemon = self._begin(Plan())

    def leaves(self, after_s: float, **fields: Any) -> None:
        """The job waits for its next run, as Slurm tells it then."""
        waiting = {"state": "PENDING", "restarts": 1, "submit_s": NOW_S + after_s, "start_s": None, **fields}
        self.slurm.set(5, node_names=(), gpu_nodes=(), **waiting)

    def written(self, after_s: float) -> list[SetAdminComment]:
        """What a pass writes into AdminComments."""
        self.slurm.carried_out.clear()
        self.daemon.reconcile(NOW_S + after_s)
        return [change for change in self.slurm.carried_out if isinstance(change, SetAdminComment)]

    def recorded(self, after_s: float) -> PreemptionRecord:
        """The record that a pass writes, which Slurm has then."""
        (change,) = self.written(after_s)
        self.slurm.set(5, admin_comment=change.admin_comment)
        return read(change.admin_comment, NOW_S + after_s, 1)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_requeue_by_which_a_job_answers_the_signal_is_recorded_as_ours(site: Site, *, restarts: bool) -> None:
    """Slurm has another submission time then, and no start of the run any more."""
    site.slurm.set(5, state="COMPLETING")
    assert site.written(15) == []
    if restarts:
        site.restart()
    site.leaves(20, admin_comment="JS1:abc")
    record = site.recorded(30)
    assert record.latest == (Interruption(0, NOW_S + 20, 4, 4.0 * (RUN_S + 20), "why", beneficiary=7),)
    assert (record.submitted_s, record.others) == (50.0, "JS1:abc")
    assert site.written(40) == []


def test_what_a_job_has_saved_since_the_signal_is_not_lost(site: Site, tmp_path: Path) -> None:
    saves(tmp_path, 5, NOW_S + 15)
    site.leaves(20)
    assert site.recorded(30).lost_gpu_s == 4.0 * 5


@pytest.mark.parametrize("how", ["postpones", "loses"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_record_that_slurm_does_not_take_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, *, restarts: bool
) -> None:
    away = [True]

    def fails(change: Change) -> bool:
        return isinstance(change, SetAdminComment) and away[0]

    site = Site(tmp_path, monkeypatch, **{how: fails})
    site.leaves(20)
    served_s = []
    for after_s in (30, 40, 100):
        assert site.written(after_s) == []
        served_s.append(site.daemon.decide(NOW_S + after_s).seen.known.served_s)
    assert served_s == [{7: NOW_S + 30}] * 3
    away[0] = False
    if restarts:
        site.restart()
    assert site.recorded(700).count == 1
    assert site.written(710) == []


def test_a_record_that_slurm_refuses_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch, refuses=lambda change: isinstance(change, SetAdminComment))
    site.leaves(20)
    site.daemon.reconcile(NOW_S + 30)
    site.slurm.refuses = lambda _change: False
    assert site.written(40) == []


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("why", ["held by its owner", "node failed", "after the grace period", "runs again"])
def test_another_requeue_is_not_recorded_as_ours(
    site: Site, monkeypatch: pytest.MonkeyPatch, why: str, *, restarts: bool
) -> None:
    if restarts:
        site.restart()
    if why == "held by its owner":
        site.leaves(20, reason="JobHeldUser", priority=0)
    elif why == "node failed":
        site.leaves(20)
        monkeypatch.setattr(site.slurm, "nodes", lambda: (replace(NODES[0], state="DOWN*"), *NODES[1:]))
    elif why == "after the grace period":
        site.leaves(GRACE_S + 1000)
    else:
        site.leaves(20, state="RUNNING", start_s=NOW_S + 25)
    after_s = GRACE_S + 1010 if why == "after the grace period" else 30
    assert site.written(after_s) == []
    assert not site.daemon.decide(NOW_S + after_s).seen.known.served_s
    site.leaves(20, reason="Priority")  # its owner releases it, the node is back
    monkeypatch.setattr(site.slurm, "nodes", lambda: NODES)
    assert site.written(after_s + 10) == []


def test_nobody_is_served_by_an_answer_that_comes_after_its_beneficiary_has_started(site: Site) -> None:
    site.slurm.set(7, state="RUNNING", start_s=NOW_S + 5, node_names=("n2",), gpu_nodes=(("n2", 4),))
    assert site.written(10) == []
    site.leaves(20)
    assert site.recorded(30).count == 1
    assert not site.daemon.decide(NOW_S + 30).seen.known.served_s
