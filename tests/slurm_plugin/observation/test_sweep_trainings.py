"""Trainings of a sweep are known after their end, as long as others of the sweep wait or run."""

from __future__ import annotations

import json
import os
from pathlib import Path

from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.observation.memory import Remembered, SweepTrainings
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.progress import ProgressSpool
from tests.slurm_kit import record

NOW_S = 10_000.0


class Daemon:
    """What the daemon does with its memory, pass after pass."""

    def __init__(self, spool: Path) -> None:
        self._spool = ProgressSpool(spool)
        self._trainings = SweepTrainings()

    def sees(self, now_s: float, *records: SlurmJob) -> Observation:
        remembered = Remembered(trainings=self._trainings.seen)
        seen = observe(ClusterRecords((), records, ()), self._spool, now_s, remembered=remembered)
        uids = {job_id: one.uid for job_id, one in seen.jobs.items()}
        self._trainings.note(seen.snapshot.jobs, seen.snapshot.ended, uids, now_s)
        return seen


def training(job_id: int, sweep: str = "s", state: str = "RUNNING") -> SlurmJob:
    started = {"start_s": NOW_S - 100} if state == "RUNNING" else {}
    return record(job_id, state=state, comment=f"explsched:sweep={sweep}", uid=os.getuid(), **started)


def reports(spool: Path, job_id: int, *values: float) -> None:
    lines = [{"time_s": NOW_S - 100, "restart": 0, "event": "start"}]
    lines += [
        {"time_s": NOW_S - 90 + step, "restart": 0, "step": step, "metric": "loss", "value": value}
        for step, value in enumerate(values)
    ]
    (spool / f"{job_id}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_last_reports_of_an_ended_training_are_known(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    reports(tmp_path, 1, 3.0, 2.0)
    assert daemon.sees(NOW_S, training(1), training(2, state="PENDING")).snapshot.ended == ()
    reports(tmp_path, 1, 3.0, 2.0, 1.0)  # after the last pass that saw it
    for later_s in (15.0, 30.0):
        (ended,) = daemon.sees(NOW_S + later_s, training(2, state="PENDING")).snapshot.ended
        assert (ended.job_id, [point.value for point in ended.points]) == (1, [3.0, 2.0, 1.0])
        assert ended.executed_s(NOW_S + later_s) == 100.0


def test_it_goes_with_the_last_of_its_sweep(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.sees(NOW_S, training(1), training(2), training(3, "another"))
    assert [job.job_id for job in daemon.sees(NOW_S + 15, training(2), training(3, "another")).snapshot.ended] == [1]
    daemon.sees(NOW_S + 30, training(3, "another"))
    assert daemon.sees(NOW_S + 45, training(3, "another")).snapshot.ended == ()


def test_a_requeued_training_has_not_ended(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.sees(NOW_S, training(1), training(2))
    assert daemon.sees(NOW_S + 15, training(1, state="PENDING"), training(2)).snapshot.ended == ()
