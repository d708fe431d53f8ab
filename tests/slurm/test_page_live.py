"""The page in a real browser beside a real Slurm and the real daemon while a sweep runs; the docs show its pictures."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from slurm_plugin.state.published import FILE
from testkit.gateway import Load
from tests.slurm.gateway import in_foreground
from tests.slurm.jobs import a_daemon, config, environment, submit, until
from tests.slurm_plugin.web.browsing import SCREENSHOTS, Tab, a_browser, needs_chromium, served

pytestmark = [pytest.mark.slurm, needs_chromium]

PICTURES = {"cluster": "web-cluster", "sweep/digits/root": "web-sweep"}
TRAINING = """\
say() {{ printf '{{"time_s": %s, "restart": 0, %s}}\\n' "$(date +%s.%N)" "$1" >> {spool}/$SLURM_JOB_ID.jsonl; }}
step=0
while [ $step -lt {steps} ]; do
  step=$((step + 1))
  loss=$(awk "BEGIN {{ print {floor} + (2.5 - {floor}) / (1 + {lr} * 40 * $step) }}")
  say "$(printf '"step": %d, "metric": "loss", "value": %s, "total_steps": {steps}' $step $loss)"
  sleep 0.3
done
say '"event": "end"'
"""
TRIALS = (
    *((0.001, 16, "sgd"), (0.003, 32, "adam"), (0.01, 64, "adam"), (0.03, 32, "sgd")),
    *((0.1, 128, "adam"), (0.3, 64, "sgd"), (0.02, 128, "adam"), (0.05, 16, "adam")),
)


def sweep(cluster: Cluster, spool: Path) -> list[int]:
    """More trainings than there are GPUs, as a user might submit them; one of them ends soon."""
    found = []
    for number, (lr, batch, optimiser) in enumerate(TRIALS):
        told = f"explsched:sweep=digits&metric=loss&params=lr%3D{lr}%2Cbatch%3D{batch}%2Copt%3D{optimiser}"
        steps = 12 if number == 1 else 400
        script = TRAINING.format(spool=spool, steps=steps, floor=round(0.1 + abs(lr - 0.03) * 2, 3), lr=lr)
        options = ("--gpus-per-node=1", "--time=30", f"--comment={told}", f"--job-name=digits-{number}")
        found.append(submit(cluster, *options, script=script))
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with a_browser() as started:
        yield started


def test_the_page_shows_a_live_cluster_with_a_running_sweep(
    browser: Any, small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    gang = None
    with a_daemon(small, tmp_path, config(spool)):
        until((spool.parent / "state" / FILE).exists, "the daemon publishes")
        with served(tmp_path / "explsched.yaml", environment=environment(small)) as address:
            tab = Tab(browser, address)
            assert "none" in tab.go("queue"), "the cluster is empty at first"
            trainings = sweep(small, spool)
            gang = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=60", "--job-name=<b>gang</b>")
            link = tab.page.get_by_role("link", name=str(gang), exact=True)

            def is_shown(view: str, *texts: str) -> bool:
                shown = tab.go(view)
                tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
                return all(text in shown for text in texts)

            until(
                lambda: is_shown("queue", str(gang), "<b>gang</b>", "running", "waiting"), "all jobs are in the queue"
            )
            assert link.count() == 1
            until(lambda: is_shown("sweep/digits/root", "Trainings, best first", "done"), "a training has ended")
            tab.page.wait_for_selector(".parallel path.best", state="attached")
            if SCREENSHOTS:
                time.sleep(10)  # for curves that are worth a picture
            for view in ("cluster", "queue", "sweeps", "sweep/digits/root", f"job/{trainings[0]}", "plan", "audit"):
                tab.go(view)
                assert tab.serious_findings() == [], view
                assert tab.is_whole(), view
                if view in PICTURES:
                    tab.keep(PICTURES[view])
            assert "digits" in tab.go("sweeps")
            assert f"{trainings[0]}" in tab.go("audit") or f"{gang}" in tab.go("audit")
            assert tab.faults == []
            dark, phone = Tab(browser, address, "dark"), Tab(browser, address, "dark", 390)
            for other, name in ((dark, "dark"), (phone, "phone")):
                other.go("cluster" if name == "dark" else "sweep/digits/root")
                other.keep(f"web-{name}")
            tab.page.close()


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (scripts/install)")
def test_the_page_shows_a_live_gateway_at_work(
    browser: Any, small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    directory = Path(tempfile.mkdtemp(dir=open_tmp))
    state = str(directory / "gateway")
    with (
        a_daemon(small, tmp_path, config(spool)),
        in_foreground(small, directory) as gateway,
        served(tmp_path / "explsched.yaml", "--gateway", state, environment=environment(small)) as address,
    ):
        until((spool.parent / "state" / FILE).exists, "the daemon publishes")
        until(lambda: gateway.serving() == 1, "the first replica serves")
        tab = Tab(browser, address)

        def tokens() -> float:
            tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            found = re.search(r"TOKENS TODAY\s+(\S+)", tab.go("gateway").upper())
            return float(found[1].replace(",", "")) if found else 0.0

        with Load(gateway.url, per_s=5, tokens=20).running() as load:
            until(lambda: tokens() > 0, "the page counts the tokens of its answers")
        assert load.failures == []
        shown = tab.go("gateway")
        (job,) = gateway.jobs("tiny")
        assert str(job) in shown
        assert "Scaling decisions, the newest first" in shown
        assert tab.serious_findings() == []
        assert tab.is_whole()
        tab.keep("web-gateway")
        assert tab.faults == []
        tab.page.close()
