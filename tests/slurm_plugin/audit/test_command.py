"""`sexplsched audit`: for people in a terminal, for programs in a pipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from explsched.cli import root
from slurm_plugin.audit_file import AuditEntry, AuditTrail

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
