"""`sexplsched audit`, for people in a terminal, for programs in a pipe; and when `admin reset` refuses."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from explsched.cli import root
from slurm_plugin import config as configuration
from slurm_plugin.audit_file import AuditEntry, AuditTrail
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import ClusterRecords
from slurm_plugin.instance.host_lock import HostLock, address
from slurm_plugin.steering.controller import Controller
from tests.slurm_kit import NODES, NOW_S, FakeSlurm, record

LONG = "JS1:" + "x" * 900


@pytest.fixture
def config(tmp_path: Path) -> Path:
    trail = AuditTrail(tmp_path / "audit.jsonl", 1, 1)
    trail.write(
        [
            AuditEntry(1e9, 5, "SiteFactor", 0, 9, "srsf", "order", "short\tand \x1b[31msweet", "ada"),
            AuditEntry(1e9, 6, "AdminComment", None, LONG, "srsf", "annotation", "why", "bob", "Access denied"),
        ]
    )
    path = tmp_path / "explsched.yaml"
    path.write_text(f"audit: {{file: {tmp_path}/audit.jsonl}}\n")
    return path


def invoke(*argv: str) -> str:
    result = CliRunner().invoke(root, ["audit", *argv])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_pipe_gets_a_line_for_each_change_and_a_field_for_each_column(config: Path) -> None:
    rows = [line.split("\t") for line in invoke("-f", str(config)).splitlines()]
    assert rows[0] == ["TIME", "JOBID", "FIELD", "BEFORE", "AFTER", "RULE", "REASON"]
    assert rows[1][1:] == ["5", "SiteFactor", "0", "9", "order", "short?and ?[31msweet"]
    assert rows[2][1:] == ["6", "AdminComment", "-", LONG, "annotation", "REFUSED (Access denied): why"]
    assert invoke("6", "-f", str(config)).count("\n") == 2


def test_json_has_everything(config: Path) -> None:
    told = json.loads(invoke("--json", "-f", str(config)))["changes"]
    assert [(entry["job"], entry.get("refused", "")) for entry in told] == [(5, ""), (6, "Access denied")]


def test_a_terminal_gets_lines_that_fit(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.cli.admin.room", lambda: 100)
    assert max(map(len, invoke("-f", str(config)).splitlines())) <= 100


CLUSTER = f"c{os.getpid()}"


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a cluster with nothing in it, on whose host commands of Slurm answer."""
    answer = f"case $1 in -V) echo slurm 24.11.5;; show) echo 'ClusterName = {CLUSTER}';; esac"
    for name, body in {"scontrol": answer, "squeue": "", "sprio": "", "sdiag": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    spool = tmp_path / "spool"
    files = f"order: {{site_factor_file: {tmp_path}/factors.json}}\naudit: {{file: {tmp_path}/audit.jsonl}}\n"
    (tmp_path / "reset.yaml").write_text(f"progress: {{spool: {spool}}}\n{files}")
    return spool


def reset(spool: Path, *more: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(root, ["admin", "reset", "-f", str(spool.parent / "reset.yaml"), *more])
    return done.exit_code, done.stdout, f"{done.stderr}{done.exception or ''}"


def test_a_reset_sees_a_daemon_of_this_host_that_has_no_heartbeat(spool: Path) -> None:
    """Its spool cannot be written, or is another one."""
    spool.mkdir()
    lock = HostLock()
    lock.take(f"{CLUSTER}/?/?")
    status, told, why = reset(spool)
    assert (status, told) == (1, "")
    assert f"steers cluster {CLUSTER}/?/?: pid {os.getpid()} " in why
    assert reset(spool, "--dry-run")[0] == 0
    lock.release()
    assert reset(spool)[:2] == (0, "nothing of explsched is left in Slurm\n")


def test_a_reset_does_not_go_on_beside_a_process_that_may_be_a_daemon(spool: Path) -> None:
    spool.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(address(f"{CLUSTER}/?/?"))
        status, told, why = reset(spool)
    assert (status, told) == (1, "")
    assert f"may be a daemon has the lock of cluster {CLUSTER}" in why


@pytest.mark.parametrize(
    ("recorded", "lifted"), [(None, 1), ("{}", 0), ('{"6": [0.0, [5.0]]}', 0), ('{"5": [0.0, 5]}', 1)]
)
def test_a_reset_lifts_begin_times_of_owners_only_where_delays_are_not_recorded(
    spool: Path, monkeypatch: pytest.MonkeyPatch, recorded: str | None, lifted: int
) -> None:
    """It cannot tell them apart there, as after a daemon of an earlier release."""
    now_s, preempted = time.time(), "explsched-preemption:since=1&n=1&lost=0"
    hers = record(5, admin_comment=preempted, restarts=1, submit_s=now_s - 5000, eligible_s=now_s + 300)
    monkeypatch.setattr(CliClient, "look", lambda _client: ClusterRecords(NODES, (hers,), ()))
    if recorded is not None:
        (spool.parent / "delayed_starts.json").write_text(recorded)
    assert reset(spool, "--dry-run")[1].count("StartTime") == lifted


def test_a_daemon_records_that_it_has_delayed_nobody(spool: Path) -> None:
    daemon = Controller(FakeSlurm(()), configuration.load(spool.parent / "reset.yaml"))
    daemon.decide(NOW_S)
    assert not (spool.parent / "delayed_starts.json").exists()  # a dry run leaves nothing
    daemon.reconcile(NOW_S)
    assert (spool.parent / "delayed_starts.json").read_text() == "{}"


def test_a_reset_says_where_daemons_of_other_hosts_cannot_be_seen(spool: Path) -> None:
    status, _, why = reset(spool)
    assert status == 0
    assert f"{spool}: No such file or directory: a daemon on another host would not be seen" in why
