"""Jobs of scrontab: Slurm refuses every update of them, also by root, so they are left to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from sched_policy.model import NodeGpus
from sched_policy.plan import Plan, Reservation, Score
from slurm_plugin.client.changes import (
    AttachReservation,
    Change,
    CreateReservation,
    DeleteReservation,
    SetAdminComment,
    SetSiteFactor,
    SignalJob,
)
from slurm_plugin.client.records import SlurmReservation
from slurm_plugin.config import PreemptionSection
from slurm_plugin.observation.standing import lease_name
from slurm_plugin.state.jobs import explanations
from slurm_plugin.state.view import View
from tests.slurm_kit import FakeSlurm
from tests.slurm_plugin.steering.test_controller import (
    NOW_S,
    Fixed,
    asked_to_make_room,
    asking,
    configured,
    controller,
    holding,
    interruptions,
)

WORDS = "Cannot modify scrontab jobs through scontrol"


def test_a_scrontab_job_is_left_to_slurm_once_slurm_has_refused_to_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = Reservation(6, (NodeGpus("n1", 4),), NOW_S + 3600, NOW_S + 7200, "first")
    plan = Plan(scores=(Score(6, 2.0, ""), Score(7, 1.0, "")), reservations=(planned,))
    slurm = FakeSlurm((holding(5), asking(6, reason="Resources"), asking(7)), says=WORDS)
    slurm.refuses = lambda change: getattr(change, "job_id", None) == 6
    daemon = controller(slurm, tmp_path, monkeypatch, plan)
    first = daemon.reconcile(NOW_S)
    assert {type(failure.change) for failure in first.failures} == {SetSiteFactor, AttachReservation}
    start_s, name = next((one.start_s, one.name) for one in first.changes if isinstance(one, CreateReservation))
    slurm.leases = (SlurmReservation(name, start_s, start_s + 120, ("n1",), ("ada",), frozenset()),)
    slurm.set(7, site_factor=next(one.site_factor for one in slurm.carried_out if isinstance(one, SetSiteFactor)))
    assert daemon.reconcile(NOW_S + 6).changes == (DeleteReservation(lease_name(6)),)
    slurm.leases = ()
    for pass_s in range(12, 3600, 60):
        last = daemon.reconcile(NOW_S + pass_s)
        assert last.changes == ()
    sentences = (one.sentences for one in explanations(View.planned(configured(tmp_path), last.seen, plan)))
    told = "It is left to Slurm, because it is a scrontab job, which Slurm lets nobody change"
    assert sum(told in sentence for one in sentences for sentence in one) == 1


def test_a_later_job_with_its_id_is_steered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((asking(6),), says=WORDS, refuses=lambda _change: True)
    daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=(Score(6, 1.0, ""),)))
    daemon.reconcile(NOW_S)
    assert daemon.reconcile(NOW_S + 6).changes == ()
    slurm.set(6, state="CANCELLED")
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(Plan()))
    daemon.reconfigure(configured(tmp_path))
    daemon.reconcile(NOW_S + 12)
    slurm.set(6, state="PENDING")
    assert daemon.reconcile(NOW_S + 18).seen.unmodelled == {}


def test_a_scrontab_job_is_asked_once_to_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in its next run either: it would save for a requeue that cannot be recorded."""

    def records_it(change: Change) -> bool:
        return isinstance(change, SetAdminComment)

    slurm, loop, plan = asked_to_make_room(tmp_path, monkeypatch, says=WORDS, refuses=records_it)
    loop.reconcile(NOW_S)
    loop.reconcile(NOW_S + PreemptionSection().grace_s)
    slurm.set(1, restarts=1)
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(replace(plan, preemptions=())))
    loop.reconfigure(configured(tmp_path))
    loop.reconcile(NOW_S + 600.0)
    seen = loop.reconcile(NOW_S + 606.0).seen
    assert interruptions(slurm) == [SignalJob]
    assert seen.spares[1] == "it is a scrontab job, which Slurm lets nobody change"
