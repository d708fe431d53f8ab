"""What a daemon knows of sweeps that an earlier one has steered."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from slurm_plugin.observation import sweep_record
from slurm_plugin.observation.sweep_record import Note
from slurm_plugin.steering.spool import DaemonSpool
from tests.slurm_kit import record

NOW_S = 1_000_000.0


def test_a_sweep_without_trainings_at_the_daemons_start_is_known_once_it_goes_on(tmp_path: Path) -> None:
    noted = [Note(NOW_S, "joined", 1, "ada", os.getuid(), "s"), Note(NOW_S, "joined", 2, "ada", os.getuid(), "t")]
    (tmp_path / sweep_record.NAME).write_bytes(b"".join(msgspec.json.encode(note) + b"\n" for note in noted))
    spool, told = DaemonSpool(tmp_path), {"uid": os.getuid(), "submit_s": NOW_S + 100}
    other, goes_on = (record(n, comment=f"explsched:sweep={name}", **told) for n, name in ((3, "t"), (4, "s")))
    passes = [spool.ended_before(jobs, "user", NOW_S + 200) for jobs in ([other], [other, goes_on], [goes_on])]
    assert [sorted(ended) for ended in passes] == [[2], [1], []]
