"""Files of the daemon that root writes, too, in a spool as the package makes it."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from explsched.cli import root
from explsched.spool import MODE
from sched_policy.model import Exploration
from sched_policy.plan import Plan
from slurm_plugin.instance.heartbeat import Heartbeat
from slurm_plugin.instance.holder import Holder
from slurm_plugin.observation import sweep_record
from slurm_plugin.observation.sweep_record import KEPT_S, Note, SweepRecord
from tests.sched_policy.builders import NOW_S, job
from tests.slurm_kit import record
from tests.slurm_plugin.other_user import user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
USER = pwd.getpwnam("daemon")  # of a group of the same name
NOBODY = 65534


@pytest.fixture
def spool(open_tmp: Path) -> Path:
    path = open_tmp / f"spool-{os.urandom(4).hex()}"
    path.mkdir()
    os.chown(path, 0, USER.pw_gid)
    path.chmod(MODE)
    return path


def noted(spool: Path, job_id: int, now_s: float = NOW_S) -> None:
    """One pass of a daemon that has just started, and sees a training."""
    training = job(job_id, exploration=Exploration("digits"))
    SweepRecord(spool).note((training,), (), Plan(), {job_id: record(job_id, uid=1000)}, now_s)


def seen(spool: Path) -> list[int]:
    return [note.job for note in sweep_record.read(spool)]


def test_the_record_that_root_begins_is_the_daemons(spool: Path) -> None:
    noted(spool, 1)
    with user(USER.pw_uid):
        noted(spool, 2)
    noted(spool, 3)
    with user(USER.pw_uid):
        noted(spool, 4)
    for uid in (0, USER.pw_uid, NOBODY):
        with user(uid):
            assert seen(spool) == [1, 2, 3, 4]


def test_the_record_from_which_root_drops_old_notes_stays_the_daemons(spool: Path) -> None:
    with user(USER.pw_uid):
        noted(spool, 1)
    noted(spool, 2, NOW_S + KEPT_S + 1)
    with user(USER.pw_uid):
        noted(spool, 3, NOW_S + KEPT_S + 1)
        assert seen(spool) == [2, 3]


def test_a_users_file_of_that_name_is_no_record(spool: Path) -> None:
    with user(NOBODY):
        (spool / sweep_record.NAME).write_bytes(msgspec.json.encode(Note(1.0, "joined", 1, "u", 1, "s")))
    noted(spool, 2)
    assert seen(spool) == []


@pytest.mark.parametrize(("owner", "level"), [(0, "fault"), (USER.pw_uid, None)])
def test_doctor_names_a_record_that_the_daemon_cannot_write(
    spool: Path, tmp_path: Path, owner: int, level: str | None
) -> None:
    with user(USER.pw_uid):
        Heartbeat(spool, "alpha", Holder.here()).beat(90.0)
    (spool / sweep_record.NAME).touch()
    os.chown(spool / sweep_record.NAME, owner, -1)
    config = tmp_path / "explsched.yaml"
    config.write_text(f"progress: {{spool: {spool}}}")
    told = json.loads(CliRunner().invoke(root, ["doctor", "--json", "--config", str(config)]).stdout)
    assert {one["level"] for one in told if one["check"] == "sweep record"} == ({level} if level else set())
