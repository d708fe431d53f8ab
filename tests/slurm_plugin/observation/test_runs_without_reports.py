"""Trainings that end without a curve are held against their user for a day."""

from __future__ import annotations

from typing import Any

import pytest

from sched_policy.model import Exploration, Job
from slurm_plugin.observation.trainings import FADES_S, RunsWithoutReports
from tests.sched_policy.builders import NOW_S, curve, job, running

SWEEP = Exploration(sweep="s")


def training(job_id: int, ran_s: float, **fields: Any) -> Job:
    return running(job_id, "n1", ran_s=ran_s, **{"exploration": SWEEP, **fields})


def test_what_ended_without_a_curve_counts_by_user() -> None:
    runs = RunsWithoutReports()
    others = (
        training(3, 30.0, points=curve(0.1, 1.0, 10)),
        training(4, 30.0, exploration=None),
        job(5, exploration=SWEEP),
    )
    runs.note((training(1, 30.0), training(2, 40.0, user="eve"), *others), NOW_S)
    assert runs.by_user == {}
    runs.note((), NOW_S)
    assert runs.by_user == {"ada": 30.0, "eve": 40.0}
    runs.note((training(6, 10.0),), NOW_S)
    runs.note((), NOW_S)
    assert runs.by_user["ada"] == 40.0


def test_what_is_still_there_does_not_count_yet() -> None:
    runs = RunsWithoutReports()
    runs.note((training(1, 30.0),), NOW_S)
    runs.note((training(1, 30.0),), NOW_S + 15)
    runs.note((job(1, exploration=SWEEP, restarts=1),), NOW_S + 30)
    assert runs.by_user == {}
    runs.note((), NOW_S + 30)  # requeued and cancelled
    assert runs.by_user == {"ada": 45.0}


def test_it_fades_and_is_forgotten() -> None:
    runs = RunsWithoutReports()
    runs.note((training(1, 100.0),), NOW_S)
    runs.note((), NOW_S)
    runs.note((), NOW_S + FADES_S)
    assert runs.by_user["ada"] == pytest.approx(36.8, abs=0.1)
    runs.note((), NOW_S + 6 * FADES_S)
    assert runs.by_user == {}
