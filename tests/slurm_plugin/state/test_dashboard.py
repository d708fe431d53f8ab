"""Dashboard, alerting rules and documentation ask for the metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from slurm_plugin.state.metrics import METRICS_FILE
from tests.slurm_plugin.state import published

DOCS = Path(__file__).parents[3] / "docs"
_NAME = re.compile(r"explsched_[a-z_]+")


@pytest.fixture
def told(tmp_path: Path) -> set[str]:
    _ = published(tmp_path)
    text = (tmp_path / "state" / METRICS_FILE).read_text()
    names = {_NAME.match(line) for line in text.splitlines() if not line.startswith("#")}
    return {found[0] for found in names if found and not found[0].endswith("_created")}


def test_the_dashboards_show_every_metric_and_no_other(told: set[str]) -> None:
    files = ("daemon_dashboard.json", "gpus_dashboard.json")
    panels = [panel for name in files for panel in json.loads((DOCS / name).read_text())["panels"]]
    assert {name for panel in panels for target in panel["targets"] for name in _NAME.findall(target["expr"])} == told


def test_the_alerts_ask_for_metrics_that_exist_and_say_what_is_wrong(told: set[str]) -> None:
    rules = yaml.safe_load((DOCS / "daemon_alerts.yml").read_text())["groups"][0]["rules"]
    assert {name for rule in rules for name in _NAME.findall(rule["expr"])} <= told
    assert all(rule["annotations"]["summary"].endswith(".") and rule["labels"]["severity"] for rule in rules)


def test_the_page_names_every_metric(told: set[str]) -> None:
    named = set(_NAME.findall((DOCS / "metrics.md").read_text()))
    assert told <= named


def test_the_rules_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(
        [promtool, "test", "rules", str(DOCS / "daemon_alerts_test.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
