"""What a daemon knows of sweeps that an earlier one has steered."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from slurm_plugin.observation import sweep_record
from slurm_plugin.observation.observe import observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.sweep_record import Note
from slurm_plugin.steering.spool import DaemonSpool
from tests.slurm_kit import FakeSlurm, record

NOW_S = 1_000_000.0
COMMENT = "explsched:sweep=s"


def keep(spool: Path, noted: Sequence[Note]) -> None:
    (spool / sweep_record.NAME).write_bytes(b"".join(msgspec.json.encode(note) + b"\n" for note in noted))


def test_a_sweep_without_trainings_at_the_daemons_start_is_known_once_it_goes_on(tmp_path: Path) -> None:
    noted = [Note(NOW_S, "joined", 1, "ada", os.getuid(), "s"), Note(NOW_S, "joined", 2, "ada", os.getuid(), "t")]
    keep(tmp_path, noted)
    spool, told = DaemonSpool(tmp_path), {"uid": os.getuid(), "submit_s": NOW_S + 100}
    other, goes_on = (record(n, comment=f"explsched:sweep={name}", **told) for n, name in ((3, "t"), (4, "s")))
    passes = [spool.ended_before(jobs, "user", NOW_S + 200) for jobs in ([other], [other, goes_on], [goes_on])]
    assert [sorted(ended) for ended in passes] == [[2], [1], []]


def test_trainings_whose_reports_could_not_be_read_follow_in_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was noted long before its end counts as of a former sweep unless its reports are read."""
    keep(tmp_path, [Note(NOW_S - 200_000, "joined", 1, "ada", os.getuid(), "s", submit_s=NOW_S - 200_000)])
    lines = ({"time_s": NOW_S - 200_000, "event": "start"}, {"time_s": NOW_S, "event": "end", "status": 0})
    (tmp_path / "1.jsonl").write_text("".join(json.dumps({"restart": 0, **line}) + "\n" for line in lines))
    spool, goes_on = DaemonSpool(tmp_path), record(2, comment=COMMENT, uid=os.getuid(), submit_s=NOW_S + 100)

    def fails(*_spool: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr("slurm_plugin.observation.spool.directories", fails)
        assert not spool.ended_before([goes_on], "user", NOW_S + 200)
    assert set(spool.ended_before([goes_on], "user", NOW_S + 215)) == {1}
    assert not spool.ended_before([goes_on], "user", NOW_S + 230)


def test_where_no_training_has_ended_no_comment_is_read_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50,000 jobs that took most of a second in each pass."""
    spool, jobs = DaemonSpool(tmp_path), [record(1, comment=COMMENT, uid=os.getuid())]
    keep(tmp_path, [Note(NOW_S, "joined", 2, "ada", os.getuid(), "s")])
    assert set(spool.ended_before(jobs, "user", NOW_S)) == {2}  # and no sweep is left that was not met
    looks = FakeSlurm(jobs).look()

    def read(_job: object) -> NoReturn:
        raise AssertionError("a comment was read")

    for module in ("steering.spool", "observation.observe"):
        monkeypatch.setattr(f"slurm_plugin.{module}.exploration_of", read)
    assert not spool.ended_before(jobs, "user", NOW_S)
    assert observe(looks, ProgressSpool(tmp_path), NOW_S).snapshot.ended == ()
