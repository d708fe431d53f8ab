"""The files that an admin copies, read by the programs they are for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from explsched import spool
from slurm_plugin.cli.web import web
from slurm_plugin.config import Config
from slurm_plugin.instance.heartbeat import HEARTBEATS
from slurm_plugin.observation import sweep_record
from wrappers import node_mps

ETC = Path(__file__).parents[2] / "slurm_plugin" / "etc"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_unit_is_understood(tmp_path: Path) -> None:
    unit = tmp_path / "sexplschedd.service"
    text = (ETC / unit.name).read_text()
    unit.write_text(text.replace("/usr/bin/sexplschedd", shutil.which("true") or "/bin/true"))
    done = run("systemd-analyze", "verify", "--man=no", str(unit))
    assert unit.name not in done.stderr, done.stderr


DOCS = ETC.parents[1] / "docs"


_UNIT = re.compile(r"`/etc/systemd/system/([a-z-]+\.service)`.*?```ini\n(.*?)```", re.DOTALL)
DOCUMENTED = {name: text for page in sorted(DOCS.glob("*.md")) for name, text in _UNIT.findall(page.read_text())}
"""The units that docs tell admins to write: the text follows the path."""


@pytest.mark.parametrize(("name", "text"), DOCUMENTED.items())
def test_units_of_the_docs_are_understood(tmp_path: Path, name: str, text: str) -> None:
    unit = tmp_path / name
    unit.write_text(re.sub(r"/usr/bin/sexpl\w+", shutil.which("true") or "/bin/true", text))
    done = run("systemd-analyze", "verify", "--man=no", str(unit))
    assert name not in done.stderr, done.stderr


def runtime_directory(unit: str) -> Path:
    (name,) = re.findall(r"^RuntimeDirectory=(.+)$", unit, re.M)
    return Path("/run", name)


def test_sockets_are_where_their_unit_makes_a_directory() -> None:
    """And not in that of another service, which systemd removes when that one stops."""
    units = DOCUMENTED
    assert units.keys() == {"sexplschedd-state.service", "sexplsched-web.service"}
    daemon = runtime_directory((ETC / "sexplschedd.service").read_text())
    (page,) = re.findall(r"--socket (\S+)", units["sexplsched-web.service"])
    assert Path(page).parent == runtime_directory(units["sexplsched-web.service"]) != daemon
    assert page in CliRunner().invoke(web, ["--help"]).output
    assert Config().state.socket.parent == runtime_directory(units["sexplschedd-state.service"]) == daemon


def test_the_unit_exposes_little() -> None:
    done = run("systemd-analyze", "security", "--offline=yes", "--threshold=20", str(ETC / "sexplschedd.service"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", str(ETC / "explsched.sysusers"))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in (tmp_path / "etc" / "passwd").read_text().splitlines() if line.startswith("explsched:")]
    assert line.endswith("/usr/sbin/nologin")
    assert line.split(":")[2:4] == ["469", "469"], "the same on all hosts: Slurm trusts uids"


def test_a_compute_node_may_do_without_the_user(tmp_path: Path) -> None:
    """As docs/admin.md says; a package's installation ends with these two commands."""
    for kind in ("sysusers", "tmpfiles"):
        for directory in ("etc", "usr/lib"):
            (tmp_path / directory / f"{kind}.d").mkdir(parents=True)
        shutil.copy(ETC / f"explsched.{kind}", tmp_path / f"usr/lib/{kind}.d/explsched.conf")
        (tmp_path / f"etc/{kind}.d/explsched.conf").symlink_to("/dev/null")
    for argv in (("systemd-sysusers",), ("systemd-tmpfiles", "--create")):
        done = run(*argv, f"--root={tmp_path}", "explsched.conf")
        assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "etc/passwd").exists()
    assert not (tmp_path / "var").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories to others")
def test_the_spool_is_open_and_sticky_and_gives_its_group_away(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    run("systemd-sysusers", f"--root={tmp_path}", str(ETC / "explsched.sysusers"))
    done = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", str(ETC / "explsched.tmpfiles"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "var/spool/explsched/state").stat().st_mode & 0o7777 == 0o755
    found = (tmp_path / "var/spool/explsched/progress").stat()
    assert found.st_mode & 0o7777 == spool.MODE
    (group,) = [line for line in (tmp_path / "etc" / "group").read_text().splitlines() if line.startswith("explsched:")]
    assert found.st_gid == int(group.split(":")[2])
    own = (tmp_path / "var/spool/explsched/progress" / HEARTBEATS).stat()
    assert (own.st_mode & 0o777, own.st_gid) == (0o755, found.st_gid)
    assert own.st_uid != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories to others")
def test_the_record_of_sweeps_outlives_old_progress_files(tmp_path: Path) -> None:
    """The daemon itself keeps it for 90 days; nothing else in the spool is needed for longer than the rule says."""
    (tmp_path / "etc").mkdir()
    run("systemd-sysusers", f"--root={tmp_path}", str(ETC / "explsched.sysusers"))
    rules = tmp_path / "explsched.conf"
    rules.write_text((ETC / "explsched.tmpfiles").read_text().replace(" 30d\n", " 0\n"))  # everything is old enough
    run("systemd-tmpfiles", f"--root={tmp_path}", "--create", str(rules))
    progress = tmp_path / "var/spool/explsched/progress"
    for name in (sweep_record.NAME, "1.jsonl"):
        (progress / name).touch()
    done = run("systemd-tmpfiles", f"--root={tmp_path}", "--clean", str(rules))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in progress.iterdir()} == {sweep_record.NAME, HEARTBEATS}


def test_signals_for_the_daemon_do_not_reach_its_children(tmp_path: Path) -> None:
    """SIGUSR2 and SIGTERM would end Slurm's commands in the middle of a pass, and the server of the state."""
    assert "\nKillMode=mixed\n" in (ETC / "sexplschedd.service").read_text()
    text = (ETC / "explsched.logrotate").read_text()
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/said\n')
    systemctl.chmod(0o755)
    script = text.partition("postrotate")[2].partition("endscript")[0]
    subprocess.run(["sh", "-c", script], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True)
    said = (tmp_path / "said").read_text().split()
    assert said == ["kill", "--kill-who=main", "--signal=USR2", "sexplschedd.service"]


def test_what_systemd_removes_with_the_service_holds_nothing_of_jobs() -> None:
    """The MPS that slurmd starts belongs to jobs and root; a machine may run slurmd and the daemon."""
    place = node_mps.place({"SLURM_JOB_GPUS": "0"}, 1000)
    assert place is not None
    lines = (ETC / "sexplschedd.service").read_text().splitlines()
    (name,) = [line.partition("=")[2] for line in lines if line.startswith("RuntimeDirectory=")]
    assert not place.directory.is_relative_to(f"/run/{name}")


def test_what_a_pass_logs_after_the_log_was_put_aside_is_kept(tmp_path: Path) -> None:
    """The daemon opens the new log after the pass."""
    rules, log = tmp_path / "explsched", tmp_path / "sexplschedd.log"
    text = (ETC / "explsched.logrotate").read_text().replace("systemctl kill", "true")
    rules.write_text(text.replace("/var/log/explsched", str(tmp_path)))
    with log.open("a") as of_the_daemon:
        print("before", file=of_the_daemon, flush=True)
        done = run("logrotate", "--force", "--state", str(tmp_path / "state"), str(rules))
        assert done.returncode == 0, done.stderr
        print("during a pass", file=of_the_daemon, flush=True)
    assert (tmp_path / "sexplschedd.log.1").read_text() == "before\nduring a pass\n"


def test_logrotate_reads_its_file(tmp_path: Path) -> None:
    here = tmp_path / "explsched"
    here.write_text((ETC / "explsched.logrotate").read_text())  # also where the daemon's user has been removed
    done = run("logrotate", "--debug", "--state", str(tmp_path / "state"), str(here))
    assert "error:" not in done.stderr, done.stderr
    assert "note:" not in done.stderr, done.stderr
