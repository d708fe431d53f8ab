"""The record of sweeps stays small, whatever users do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sched_policy.plan import Plan
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation import sweep_record
from slurm_plugin.observation.observe import observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.sweep_record import KEPT_S, Note, SweepRecord
from tests.slurm_kit import FakeSlurm, record

NOW_S = 10_000.0


def training(job_id: int, comment: str, **fields: Any) -> SlurmJob:
    held = {"state": "RUNNING", "start_s": 1000.0, "gpus": 4, "node_names": ("n1",), "gpu_nodes": (("n1", 4),)}
    return record(job_id, comment=comment, uid=1000, **{**held, **fields})


def noted(notes: SweepRecord, spool: Path, *jobs: SlurmJob, now_s: float = NOW_S) -> None:
    seen = observe(FakeSlurm(jobs).look(), ProgressSpool(spool), now_s)
    notes.note(seen.snapshot.jobs, (), Plan(), seen.jobs, now_s)


def sweeps(spool: Path) -> list[tuple[int, str]]:
    return [(note.job, note.sweep) for note in sweep_record.read(spool)]


def test_whoever_renames_the_sweep_of_a_job_again_and_again_adds_one_note_in_each_run(tmp_path: Path) -> None:
    notes = SweepRecord(tmp_path)
    waits = {"state": "PENDING", "start_s": None, "node_names": (), "gpu_nodes": ()}
    for run in range(2):
        for fields in (waits, {}):
            for n in range(5):
                named = f"explsched:sweep=s{run}{n}{'w' if fields else 'r'}"
                noted(notes, tmp_path, training(1, named, restarts=run, **fields))
    assert sweeps(tmp_path) == [(1, "s00w"), (1, "s00r"), (1, "s10r")]


def test_a_job_that_leaves_its_sweep_and_comes_back_is_not_noted_again(tmp_path: Path) -> None:
    notes = SweepRecord(tmp_path)
    for comment in ("explsched:sweep=a", "", "explsched:sweep=a", "something", "explsched:sweep=a"):
        noted(notes, tmp_path, training(1, comment))
    assert sweeps(tmp_path) == [(1, "a")]


def test_a_job_with_the_id_of_one_that_is_gone_is_noted(tmp_path: Path) -> None:
    """As after slurmctld was installed anew, or its ids have come round."""
    notes = SweepRecord(tmp_path)
    for at_s, jobs in enumerate([(training(1, "explsched:sweep=a"),), (), (training(1, "explsched:sweep=a"),)]):
        noted(notes, tmp_path, *jobs, now_s=NOW_S + at_s)
    assert sweeps(tmp_path) == [(1, "a"), (1, "a")]


def test_of_a_user_with_many_notes_the_newest_are_read_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / sweep_record.NAME
    many = [Note(NOW_S, "joined", n, "many", 1, "s") for n in range(9)]
    few = [Note(NOW_S, "joined", n, "few", 2, "s") for n in (20, 21)]
    lines = [msgspec.json.encode(note) + b"\n" for note in (few[0], *many, few[1])]
    path.write_bytes(b"".join(lines))
    monkeypatch.setattr(sweep_record, "MOST_BYTES_OF_USER", 3 * len(lines[1]))
    assert sweeps(tmp_path) == [(20, "s"), (6, "s"), (7, "s"), (8, "s"), (21, "s")]
    assert len(path.read_bytes().splitlines()) == 11
    noted(SweepRecord(tmp_path), tmp_path, now_s=NOW_S + KEPT_S / 2)
    assert [msgspec.json.decode(line, type=Note).job for line in path.read_bytes().splitlines()] == [20, 6, 7, 8, 21]
